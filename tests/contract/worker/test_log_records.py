"""What the log says of jobs; the table of test_conformance has the fields of each record."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue.worker import Cancel, Retry
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import LostAnswer
from tests.models import Task

#: Where the database cannot matter.
pytestmark = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture(autouse=True)
def _outcomes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")


def test_each_record_names_its_job_and_what_comes_next(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    (key,) = workers.add("a", max_attempts=4)
    outcomes = [OSError("no route\nto host"), Retry(timedelta(0), "busy"), Cancel("void")]

    def handle(task: Task) -> Any:
        outcome = outcomes[task.attempts - 1]
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    queue = workers.queue(Task, handle, backoff=lambda attempts: timedelta(0))
    workers.drain(queue)

    texts = [text.split(", after ") for text in caplog.messages]
    assert [text[0] for text in texts] == [
        f"Task {key} failed, attempt 1 of 4",
        f"Task {key} wants a retry, attempt 2 of 4",
        f"Task {key} cancelled, attempt 3 of 4",
    ]
    assert texts[0][1].endswith("; next try in 0 s: OSError: no route")
    assert texts[1][1].endswith(" s; next try in 0 s: busy")
    assert texts[2][1].endswith(" s: void")
    failed = vars(caplog.records[0])
    assert (failed["max_attempts"], failed["next_try_in"], failed["queue"]) == (4, 0.0, repr(queue))
    assert failed["exc_info"] is not None
    assert all(0 <= vars(record)["duration"] < 60 for record in caplog.records)


def test_a_job_that_a_commit_without_answer_has_finished_is_not_said_to_be_untouched(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.add("a")
    told: list[str] = []

    with LostAnswer(workers.engine, 1):  # the first COMMIT is that of the claim
        workers.drain(
            Task,
            owner="w",
            reap_every=None,
            on_outcome=lambda task, outcome: told.append(task.name),
        )

    warned = [each for each in caplog.records if hasattr(each, "job_key")][-1]
    assert "a finish, perhaps our own, if the answer to its COMMIT was lost" in warned.getMessage()
    assert told == []  # nobody knows
    assert workers.rows() == {"a": ("done", 1, None)}
