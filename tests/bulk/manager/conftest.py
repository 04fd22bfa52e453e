"""Logs of every kind, and a source of ten numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine

from sa_jobqueue.bulk import DatabaseLog, FileLog, Log, load_tables
from tests.bulk.fakes import Numbers


@pytest.fixture(params=["file", "database"])
def new_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Log]]:
    """Give the same log, as another process has it."""
    if request.param == "file":
        yield lambda: FileLog(tmp_path / "log")
        return
    engine = create_engine(f"sqlite:///{tmp_path / 'log.db'}")
    load_tables(MetaData()).create_all(engine)
    yield lambda: DatabaseLog(engine)
    engine.dispose()


@pytest.fixture
def log(new_log: Callable[[], Log]) -> Log:
    return new_log()


@pytest.fixture
def source() -> Numbers:
    """Ten numbers, three a batch."""
    return Numbers(10, 3)
