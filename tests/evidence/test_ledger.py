"""A ledger's lines: within the transaction and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, complete, fence_of

# Fixtures: pytest finds them by their names here.
from tests.contract.conftest import engine, new_session, session, shared_engine
from tests.evidence.checker import check_files
from tests.evidence.ledger import Ledger
from tests.models import Email, Task, add_emails, add_tasks
from tests.support import heard

__all__ = ["engine", "new_session", "session", "shared_engine"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_claim_has_a_line_before_its_commit_and_one_after_it(
    session: Session, path: Path
) -> None:
    add_tasks(session, "a")

    with Ledger(path).listen(Task):
        claimed = claim(session, Task, owner="w")
        (before,) = lines(path)
        session.commit()
        _, after = lines(path)

    (job,), fence = before["jobs"], fence_of(claimed[0])
    assert (before["event"], before["verb"], before["table"]) == ("after_claim", "claim", "task")
    assert (job["key"], job["owner"], job["attempts"]) == ([*fence.identity], "w", 1)
    assert fence.owner_date is not None
    assert job["dates"] == [f"{fence.owner_date:%Y-%m-%dT%H:%M:%S.%fZ}"]
    assert (after["of"], after["end"]) == (before["n"], "committed")


def test_a_commit_without_an_answer_is_noted_as_unknown(
    engine: Engine, session: Session, path: Path
) -> None:
    add_emails(session, "a")

    def lose_the_answer(connection: object) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    with Ledger(path).listen(Email):
        claim(session, Email, owner="w")
        with heard(engine, "commit", lose_the_answer), pytest.raises(OperationalError):
            session.commit()
        session.rollback()

    assert lines(path)[-1]["end"] == "unknown"


def test_the_history_under_autocommit_is_sound(
    engine: Engine, session: Session, path: Path
) -> None:
    add_emails(session, "a")
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    with Ledger(path).listen(Email), Session(autocommit, expire_on_commit=False) as own:
        complete(own, JobQueue(Email).claim(own, owner="w"))

    assert [line.get("end") for line in lines(path)] == [None, "committed"] * 2
    assert check_files(path, drained=True) == []
