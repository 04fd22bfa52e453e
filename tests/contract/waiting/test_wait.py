"""wait(): a caller waits until a job has ended, and learns how."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

import sa_jobqueue.asyncio
from sa_jobqueue import ArgumentError, JobFailed, JobQueue, cancel, wait
from sa_jobqueue.worker import Retry, Worker
from tests.contract.asyncio.support import in_event_loop, make_async_engine
from tests.models import Email, Render, Task, add_emails, add_renders, add_tasks
from tests.running import ASYNC_DRIVERS

SOON, LONG = timedelta(seconds=0.2), timedelta(seconds=30)


@contextmanager
def beside(act: Callable[[], object], after: float = 0.3) -> Iterator[None]:
    """Do something in another thread a moment later."""
    thread = threading.Timer(after, act)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("make", [lambda engine: engine, sessionmaker], ids=["engine", "maker"])
def test_a_job_that_a_worker_finishes_is_returned(
    engine: Engine, session: Session, make: Callable[[Engine], Any]
) -> None:
    (email,) = add_emails(session, "ann")
    queue = JobQueue(Email)
    queue.handler(lambda job: None)

    with beside(Worker(engine, queue, drain=True).run):
        found = wait(make(engine), email, timeout=LONG)

    assert found is not None
    assert found is not email
    assert (found.recipient, found.status) == ("ann", "done")


def test_a_job_that_has_ended_is_returned_at_once(session: Session, engine: Engine) -> None:
    (email,) = add_emails(session, "ann")
    email.status = "done"
    session.commit()

    found = wait(engine, email, timeout=timedelta(0))

    assert found is not None
    assert found.status == "done"


def test_a_job_that_fails_raises_its_last_error_after_its_last_attempt(
    session: Session, engine: Engine
) -> None:
    (render,) = add_renders(session, 1)
    render.max_attempts = 2
    session.commit()
    queue = JobQueue(Render, backoff=lambda attempts: timedelta(milliseconds=50))
    calls: list[int] = []

    @queue.handler
    def handle(job: Render) -> None:
        calls.append(job.attempts)
        raise ValueError(f"no paper in attempt {job.attempts}")

    with (
        beside(Worker(engine, queue, drain=True).run),
        pytest.raises(JobFailed, match="no paper in attempt 2") as caught,
    ):
        wait(engine, render, timeout=LONG)

    assert calls == [1, 2]
    assert caught.value.status == "failed"


def test_a_cancelled_job_raises(session: Session, engine: Engine) -> None:
    (email,) = add_emails(session, "ann")
    cancel(session, email)
    session.commit()

    with pytest.raises(JobFailed, match="cancelled: nobody has told why"):
        wait(engine, email, timeout=SOON)


def test_a_job_whose_row_is_deleted_has_ended(session: Session, engine: Engine) -> None:
    (email,) = add_emails(session, "ann")

    def finish() -> None:
        with Session(engine) as other, other.begin():
            other.execute(delete(Email))

    with beside(finish):
        assert wait(engine, email, timeout=LONG) is None


def test_a_job_that_does_not_end_in_time_is_left_alone(session: Session, engine: Engine) -> None:
    (task,) = add_tasks(session, "a")
    JobQueue(Task).claim(session, owner="w")
    session.commit()
    began = time.monotonic()

    with pytest.raises(TimeoutError, match=r"Task \d+ has not ended in 0.2 s; it goes on"):
        wait(engine, task, timeout=SOON)

    assert time.monotonic() - began >= SOON.total_seconds()
    session.refresh(task)
    assert task.status == "claimed"


def test_a_job_is_waited_for_after_its_commit(session: Session, engine: Engine) -> None:
    email = Email(recipient="ann")
    with pytest.raises(ArgumentError, match="has no key yet: commit before you wait"):
        wait(engine, email, timeout=SOON)
    session.add(email)
    session.flush()
    with pytest.raises(ArgumentError, match=r"is open, has inserted it: commit before you wait"):
        wait(engine, email, timeout=SOON)


def test_a_job_whose_session_has_begun_another_transaction_is_waited_for(engine: Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        (email,) = add_emails(session, "ann")
        assert session.get(Email, email.id + 1) is None  # begins a transaction
        queue = JobQueue(Email)
        queue.handler(lambda job: None)

        with beside(Worker(engine, queue, drain=True).run):
            found = wait(engine, email, timeout=LONG)

    assert found is not None
    assert found.status == "done"


def test_what_opens_no_sessions_is_refused(session: Session, engine: Engine) -> None:
    (email,) = add_emails(session, "ann")
    not_async: Any = engine
    wrong: Any

    for wrong in (session, None):
        with pytest.raises(ArgumentError, match=r"^wait\(\) takes an Engine or the sessionmaker"):
            wait(wrong, email, timeout=SOON)
    with pytest.raises(ArgumentError, match="takes an AsyncEngine or the async_sessionmaker"):
        asyncio.run(sa_jobqueue.asyncio.wait(not_async, email, timeout=SOON))


def test_a_coroutine_waits_too(engine: Engine, session: Session, db_alias: str) -> None:
    done, failing = add_tasks(session, "a", "b")
    queue = JobQueue(Task)

    @queue.handler
    def handle(task: Task) -> Retry | None:
        return None if task.name == "a" else Retry(reason="no ink")

    failing.max_attempts = 1
    session.commit()

    @in_event_loop
    async def waits() -> None:
        other: AsyncEngine = make_async_engine(engine.url, ASYNC_DRIVERS[db_alias])
        found = await sa_jobqueue.asyncio.wait(other, done, timeout=LONG)
        assert found is not None
        assert found.status == "done"
        with pytest.raises(JobFailed, match="no ink"):
            await sa_jobqueue.asyncio.wait(async_sessionmaker(other), failing, timeout=LONG)
        await other.dispose()

    with beside(Worker(engine, queue, drain=True).run):
        waits()
