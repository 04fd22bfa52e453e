"""An idle AsyncWorker, which would look by itself once in a minute, starts within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.asyncio import enqueue as enqueue_async
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.contract.wakeups.models import Parcel, Postcard, empty
from tests.contract.wakeups.support import MINUTE, SOON, elsewhere, is_watched
from tests.support import make_engine


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def async_engine(fresh_database: URL, db_alias: str, request: pytest.FixtureRequest) -> AsyncEngine:
    """An async engine of a database of its own; on SQLite with WAL."""
    engine = make_engine(fresh_database)
    if db_alias == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=wal")
    empty(engine).dispose()
    return make_async_engine(fresh_database, request.param)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not true():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(
    engine: AsyncEngine, entity: type[Any], *, watched: bool = True
) -> AsyncIterator[asyncio.Queue[str]]:
    """Run a worker, idle and watched when the block begins; give the names that it handles."""
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(job: Any) -> None:
        await handled.put(job.name)

    worker = AsyncWorker(engine, JobQueue(entity), handle, poll=MINUTE, reap_every=None)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: is_watched(worker._worker) or not watched)
        yield handled
    finally:
        worker.stop()
        await asyncio.wait_for(running, 30)


async def next_of(handled: asyncio.Queue[str]) -> str:
    return await asyncio.wait_for(handled.get(), SOON)


@in_event_loop
async def test_a_job_of_another_process_wakes_an_idle_worker_at_once_or_when_it_is_due(
    async_engine: AsyncEngine, fresh_database: URL
) -> None:
    with elsewhere(fresh_database, Parcel) as add:
        async with working(async_engine, Parcel) as handled:
            for name in "ab":
                await asyncio.to_thread(add, name)
                assert await next_of(handled) == name
            await asyncio.to_thread(add, "later", 1)
            assert await next_of(handled) == "later"


@pytest.mark.parametrize("async_engine", DRIVERS_OF_SQLITE, indirect=True)
@in_event_loop
async def test_producers_of_the_loop_and_of_other_threads_wake_the_worker(
    async_engine: AsyncEngine, fresh_database: URL
) -> None:
    engine: Engine = make_engine(fresh_database)

    def add() -> None:
        with Session(engine) as session:
            session.add(Postcard(name="b"))
            session.commit()

    async with working(async_engine, Postcard) as handled:
        async with new_async_session(async_engine) as session:
            await enqueue_async(session, Postcard, [{"name": "a"}])
            await session.commit()
        assert await next_of(handled) == "a"
        await asyncio.to_thread(add)
        assert await next_of(handled) == "b"
    engine.dispose()
