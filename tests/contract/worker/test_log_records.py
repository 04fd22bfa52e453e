"""What the log says of a failed job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ConstantBackoff, JobQueue
from tests.contract.worker.support import work
from tests.models import Email, Task, add_emails, add_tasks

BACKOFF = ConstantBackoff(timedelta(0))


def refuse(job: object) -> None:
    raise OSError("no route\nto host")


@pytest.fixture
def records_of(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> Callable[..., list[logging.LogRecord]]:
    """Run a worker whose handler fails; return what it logs of that, by default levels."""

    def records_of(queue: JobQueue[Any], **options: Any) -> list[logging.LogRecord]:
        work(engine, queue, refuse, **options)
        return [record for record in caplog.records if record.levelno >= logging.WARNING]

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
