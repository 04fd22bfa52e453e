"""A ledger's lines: within the transaction and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, claim, complete, fence_of
from tests.evidence.bench import Bench
from tests.models import Email, Task


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_claim_has_a_line_before_its_commit_and_one_after_it(bench: Bench) -> None:
    bench.add(Task(name="a"))
    session = bench.session()

    with bench.recording(Task):
        claimed = claim(session, Task, owner="w")
        (before,) = lines(bench.path)
        session.commit()
        _, after = lines(bench.path)

    (job,), fence = before["jobs"], fence_of(claimed[0])
    assert (before["event"], before["verb"], before["table"]) == ("after_claim", "claim", "task")
    assert (job["key"], job["owner"], job["attempts"]) == ([*fence.identity], "w", 1)
    assert fence.owner_date is not None
    assert job["dates"] == [f"{fence.owner_date:%Y-%m-%dT%H:%M:%S.%fZ}"]
    assert (after["of"], after["end"]) == (before["n"], "committed")


def test_a_commit_without_an_answer_is_noted_as_unknown(bench: Bench) -> None:
    bench.add(Email(recipient="a"))
    session = bench.session()

    def lose_the_answer(connection: object) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    with bench.recording(Email):
        claim(session, Email, owner="w")
        event.listen(bench.engine, "commit", lose_the_answer)
        with pytest.raises(OperationalError):
            session.commit()
        event.remove(bench.engine, "commit", lose_the_answer)
        session.rollback()

    assert lines(bench.path)[-1]["end"] == "unknown"


def test_the_history_under_autocommit_is_sound(bench: Bench) -> None:
    bench.add(Email(recipient="a"))
    autocommit = bench.engine.execution_options(isolation_level="AUTOCOMMIT")

    with bench.recording(Email), Session(autocommit, expire_on_commit=False) as session:
        complete(session, JobQueue(Email).claim(session, owner="w"))

    assert [line.get("end") for line in lines(bench.path)] == [None, "committed"] * 2
    assert bench.faults(drained=True) == []
