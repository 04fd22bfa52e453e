"""All adapters of a run on SQLite write to the disk in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from benchmarks.adapters.adapter import SYNCHRONOUS
from benchmarks.adapters.handwritten.sqlite import Delete
from benchmarks.adapters.model import make_engine

#: What PRAGMA synchronous answers.
ANSWERS = {"FULL": 2, "NORMAL": 1}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bench.db"


def answer_of(connection: Any) -> int:
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


def engine_answer(engine: Engine) -> int:
    with engine.connect() as connection:
        found: int = connection.execute(text("PRAGMA synchronous")).scalar_one()
    engine.dispose()
    return found


@pytest.mark.parametrize("wanted", list(ANSWERS))
def test_hand_written_sql_and_ours_write_to_the_disk_as_the_run_says(
    wanted: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SYNCHRONOUS, wanted)

    by_hand = Delete(url, 1).connect()
    answers = answer_of(by_hand), engine_answer(make_engine(url))
    by_hand.close()

    assert answers == (ANSWERS[wanted], ANSWERS[wanted])
