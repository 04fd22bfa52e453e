"""An AsyncWorker on a database in memory: it has one connection, so one task does everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from tests.contract.asyncio.support import DRIVERS_OF_SQLITE, in_event_loop, new_async_session
from tests.contract.asyncio.worker_support import SOON, draining, nothing
from tests.models import Base, Email

pytestmark = pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)


@asynccontextmanager
async def in_memory(*recipients: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a database in memory, which holds these emails."""
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with new_async_session(engine) as own:
        own.add_all(Email(recipient=recipient) for recipient in recipients)
        await own.commit()
    try:
        yield engine
    finally:
        await engine.dispose()


async def statuses_in(engine: AsyncEngine) -> dict[str, str]:
    async with new_async_session(engine) as own:
        found = await own.scalars(select(Email))
        return {email.recipient: email.status for email in found}


@in_event_loop
async def test_several_handlers_at_once_are_refused(driver: str) -> None:
    async with in_memory() as engine:
        with pytest.raises(ArgumentError, match="one connection, and concurrency= needs more"):
            await draining(engine, JobQueue(Email), nothing, concurrency=2).run()


@in_event_loop
async def test_a_handler_is_cancelled_at_its_timeout(driver: str) -> None:
    queue = JobQueue(Email)

    @queue.handler(timeout=timedelta(milliseconds=50))
    async def send(email: Email) -> None:
        if email.recipient == "a":
            await asyncio.sleep(60)

    async with in_memory(*"ab") as engine:
        await asyncio.wait_for(AsyncWorker(engine, queue, drain=True, poll=SOON).run(), 20)

        assert await statuses_in(engine) == {"a": "failed", "b": "done"}


@in_event_loop
async def test_a_handler_that_cancels_its_own_task_fails_its_own_job_only(driver: str) -> None:
    async def cancel_itself(email: Email) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if email.recipient != "a":
            await asyncio.sleep(0)

    async with in_memory(*"abc") as engine:
        await asyncio.wait_for(draining(engine, JobQueue(Email), cancel_itself).run(), 20)

        assert await statuses_in(engine) == {"a": "done", "b": "failed", "c": "failed"}
