"""Awaited handlers that run for too long are cancelled: at their timeout, or after the grace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from tests.contract.asyncio.support import in_event_loop
from tests.contract.asyncio.worker_support import states
from tests.models import Task, add_tasks

SHORT = timedelta(milliseconds=200)
SOON = timedelta(milliseconds=20)


def declare(
    queue: JobQueue[Task], handle: Callable[[Task], Awaitable[None]], transactional: bool
) -> None:
    """Declare a handler with a timeout; a transactional one writes something first."""

    async def handle_in(own: AsyncSession, task: Task) -> None:
        task.priority = 7
        await own.flush()
        await handle(task)

    if transactional:
        queue.handler(transactional=True, timeout=SHORT)(handle_in)
    else:
        queue.handler(timeout=SHORT)(handle)


@pytest.mark.parametrize("transactional", [False, True])
@in_event_loop
async def test_a_handler_is_cancelled_at_its_timeout_and_the_worker_goes_on(
    async_engine: AsyncEngine, session: Session, transactional: bool
) -> None:
    add_tasks(session, *"ab", max_attempts=1)
    queue = JobQueue(Task)
    cancelled: list[str] = []

    async def handle(task: Task) -> None:
        if task.name == "b":
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(task.name)
            raise

    declare(queue, handle, transactional)
    worker = AsyncWorker(async_engine, queue, drain=True, poll=SOON)
    await asyncio.wait_for(worker.run(), 30)

    assert cancelled == ["a"]
    found = states(session)
    assert found["a"][:2] == ("failed", 1)
    assert "did not end within 0.2 s" in str(found["a"][2])
    assert found["b"] == ("done", 1, None)
    assert session.query(Task.priority).filter(Task.name == "a").scalar() != 7


@in_event_loop
async def test_a_handler_that_waits_for_nothing_is_cancelled_too(
    async_engine: AsyncEngine, session: Session
) -> None:
    """Its task has no future that could be cancelled: CancelledError has to be thrown into it."""
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)
    cancelled: list[str] = []

    async def handle(task: Task) -> None:
        try:
            while True:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            cancelled.append(task.name)
            raise

    declare(queue, handle, transactional=False)
    worker = AsyncWorker(async_engine, queue, drain=True, poll=SOON)
    await asyncio.wait_for(worker.run(), 30)

    assert cancelled == ["a"]
    assert states(session)["a"][0] == "failed"


@pytest.mark.parametrize("transactional", [False, True])
@in_event_loop
async def test_a_handler_that_hides_its_cancellation_has_failed(
    async_engine: AsyncEngine, session: Session, transactional: bool
) -> None:
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)

    async def handle(task: Task) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    declare(queue, handle, transactional)
    await asyncio.wait_for(AsyncWorker(async_engine, queue, drain=True, poll=SOON).run(), 30)

    found = states(session)["a"]
    assert found[:2] == ("failed", 1)
    assert "did not end within 0.2 s" in str(found[2])
    assert session.query(Task.priority).scalar() != 7


@in_event_loop
async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_workers(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)

    @queue.handler(timeout=timedelta(minutes=5))
    async def handle(task: Task) -> None:
        raise TimeoutError("the mail server did not answer")

    await asyncio.wait_for(AsyncWorker(async_engine, queue, drain=True).run(), 30)

    assert states(session)["a"] == ("failed", 1, "TimeoutError: the mail server did not answer")


@in_event_loop
async def test_after_the_grace_of_a_stop_handlers_are_cancelled_and_their_jobs_released(
    async_engine: AsyncEngine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(session, *"abc")
    cancelled: list[str] = []

    async def handle(task: Task) -> None:
        if task.name == "b":  # both run
            worker.stop()
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(task.name)
            raise

    worker: AsyncWorker[Task] = AsyncWorker(
        async_engine, JobQueue(Task), handle, concurrency=2, limit=3, grace=SHORT
    )
    await asyncio.wait_for(worker.run(), 30)

    assert cancelled == ["a"]
    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("unclaimed", 0),
        "b": ("done", 1),
        "c": ("unclaimed", 0),
    }
    (overdue,) = [each for each in caplog.records if "still runs 0.2 s" in each.getMessage()]
    assert "its handler is cancelled, and its job is released" in overdue.getMessage()
    assert vars(overdue)["job_class"] == "Task"
