"""What the log says of each job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import ConstantBackoff, JobQueue
from sa_jobqueue.worker import Cancel, Retry
from tests.clock import Clock
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import LostAnswer, deadlock, failing
from tests.models import Email, Task, add_emails, add_tasks

#: Where the database cannot matter.
pytestmark = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")

BACKOFF = ConstantBackoff(timedelta(0))


def refuse(job: object) -> None:
    raise OSError("no route\nto host")


@pytest.fixture
def records_of(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> Callable[..., list[logging.LogRecord]]:
    """Run a worker whose handler fails; return its records of jobs."""

    def records_of(queue: JobQueue[Any], **options: Any) -> list[logging.LogRecord]:
        caplog.set_level(logging.INFO, "sa_jobqueue")
        workers.declare(queue, refuse)
        workers.drain(queue, **options)
        return [record for record in caplog.records if "no route" in record.getMessage()]

    return records_of


def fields(record: logging.LogRecord) -> tuple[Any, ...]:
    names = ("job_class", "job_key", "attempt", "max_attempts", "next_try_in")
    return tuple(getattr(record, name) for name in names)


def test_each_attempt_leaves_one_record_that_names_its_job(
    session: Session, records_of: Callable[..., list[logging.LogRecord]]
) -> None:
    (task,) = add_tasks(session, "a", max_attempts=2)
    queue = JobQueue(Task)

    first, second = records_of(queue, backoff=BACKOFF)

    assert fields(first) == ("Task", (task.id,), 1, 2, 0.0)
    assert fields(second) == ("Task", (task.id,), 2, 2, None)
    assert first.levelno == second.levelno == logging.WARNING
    assert first.queue == repr(queue)  # type: ignore[attr-defined]  # an extra field
    assert 0 <= first.duration < 60  # type: ignore[attr-defined]  # likewise
    assert first.exc_info is not None
    assert first.getMessage().startswith(f"Task {task.id} failed, attempt 1 of 2, after ")
    assert first.getMessage().endswith("; next try in 0 s: OSError: no route")


def test_the_record_of_a_job_that_is_not_tried_again_says_so(
    session: Session, records_of: Callable[..., list[logging.LogRecord]]
) -> None:
    (email,) = add_emails(session, "a")

    (record,) = records_of(JobQueue(Email))

    assert fields(record) == ("Email", (email.id,), None, None, None)
    assert "; not tried again: OSError: no route" in record.getMessage()


def returns(task: Task) -> Retry | Cancel | None:
    """Return what the task's name asks for."""
    asked: dict[str, Retry | Cancel] = {
        "again": Retry(timedelta(0), "busy"),
        "never": Cancel("not wanted"),
    }
    return asked.get(task.name) if task.attempts == 1 else None


def test_what_handlers_return_leaves_records_of_level_info_after_the_commit(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    done, again, never = add_tasks(session, "done", "again", "never", max_attempts=2)
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")

    workers.drain(Task, returns, limit=3)

    told = {
        (record.job_key[0], record.status, record.getMessage().partition(" after ")[0])  # type: ignore[attr-defined]  # extra fields
        for record in caplog.records
    }
    assert told == {
        (done.id, "done", f"Task {done.id} done, attempt 1 of 2,"),
        (again.id, "unclaimed", f"Task {again.id} wants a retry, attempt 1 of 2,"),
        (again.id, "done", f"Task {again.id} done, attempt 2 of 2,"),
        (never.id, "cancelled", f"Task {never.id} cancelled, attempt 1 of 2,"),
    }
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if text.endswith(" s; next try in 0 s: busy")]
    assert [text for text in texts if text.endswith(" s: not wanted")]
    assert all(0 <= record.duration < 60 for record in caplog.records)  # type: ignore[attr-defined]  # an extra field


def test_a_job_whose_claim_was_lost_leaves_no_record_that_it_is_done(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(session, "lost")
    caplog.set_level(logging.INFO, "sa_jobqueue.worker")

    def take_back(task: Task) -> None:
        if task.attempts == 1:
            with Session(workers.plain) as other, other.begin():
                JobQueue(Task).reap(other, max_runtime=timedelta(0))

    workers.drain(Task, take_back)

    lost, done = [record for record in caplog.records if hasattr(record, "job_key")]
    assert "its claim was lost" in lost.getMessage()
    assert (vars(lost)["attempt"], vars(lost)["status"]) == (1, None)
    assert lost.levelno == logging.WARNING
    assert (vars(done)["attempt"], vars(done)["status"]) == (2, "done")


def test_a_job_that_a_commit_without_answer_has_finished_is_not_said_to_be_untouched(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(session, "a")
    told: list[str] = []

    with LostAnswer(workers.engine, 1):  # the first COMMIT is that of the claim
        workers.drain(
            Task,
            owner="w",
            reap_every=None,
            on_outcome=lambda task, outcome: told.append(task.name),
        )

    (warned,) = [record for record in caplog.records if hasattr(record, "job_key")]
    assert "an earlier try of this worker has finished it" in warned.getMessage()
    assert told == []  # nobody knows
    assert workers.rows() == {"a": ("done", 1, None)}


@pytest.mark.parametrize("count", [10, 12])
def test_the_record_of_jobs_that_could_not_be_released_names_ten_of_them(
    workers: Workers, db_alias: str, clock: Clock, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    _, *rest = workers.add(*map(str, range(1 + count)))

    def refused(text: str) -> bool:
        """Refuse every release, for longer than the worker tries it again."""
        changes = text.partition(" WHERE ")[0]
        is_release = changes.startswith("UPDATE task ") and "status='unclaimed'" in changes
        if is_release:
            clock.jump(3)
        return is_release

    def handle(task: Task) -> None:
        workers.worker.stop()

    worker = workers.make(workers.queue(Task, handle), owner="w", limit=1 + count, reap_every=None)
    with failing(workers.engine, refused, lambda: deadlock(db_alias)):
        workers.run(worker)

    (text,) = [text for text in caplog.messages if "could not be released" in text]
    more = {10: "", 12: " and 2 more"}[count]
    names = ", ".join(f"Task {key}" for key in rest[:10])
    assert text.startswith(f"{names}{more} could not be released; a reap returns the jobs")
