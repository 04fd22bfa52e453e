"""An idle worker, which would look by itself once in a minute, starts on a job within seconds."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.asyncio import enqueue
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    new_async_session,
)
from tests.contract.wakeups.support import (
    Hostile,
    Parcel,
    Postcard,
    add_later,
    elsewhere,
    empty,
    idle,
    until_handled,
)
from tests.contract.worker.driver import Workers
from tests.support import make_engine


@pytest.fixture(params=["wal"])
def plain(request: pytest.FixtureRequest, engine: Engine, db_alias: str) -> Iterator[Engine]:
    """The engine; on SQLite that of a file of its own with WAL, or as the test says."""
    if db_alias != "sqlite":
        yield engine
        return
    own = make_engine(request.getfixturevalue("fresh_database"))
    with closing(sqlite3.connect(str(own.url.database))) as driver:
        driver.execute(f"PRAGMA journal_mode={request.param}")
    yield empty(own)
    own.dispose()


@pytest.fixture(params=["threads", *DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def workers(request: pytest.FixtureRequest, plain: Engine) -> Workers:
    """Workers in threads, then in an event loop by each driver."""
    return Workers(request.param, plain)


@pytest.mark.parametrize("entity", [Parcel, Postcard])
def test_a_job_of_another_process_wakes_an_idle_worker(workers: Workers, entity: type[Any]) -> None:
    with elsewhere(workers.plain.url, entity) as add, idle(workers, entity):
        add("a")
        until_handled(workers, "a")
        add("b")
        until_handled(workers, *"ab")


@pytest.mark.parametrize("workers", ["threads", "asyncio"], indirect=True)
@pytest.mark.parametrize("order_by", [(), Parcel.id])
def test_a_job_wakes_the_worker_when_it_becomes_due(workers: Workers, order_by: Any) -> None:
    queue = workers.queue(Parcel, order_by=order_by)

    with elsewhere(workers.plain.url, Parcel) as add, idle(workers, queue):
        add("later", 3)
        add("soon", 1)
        until_handled(workers, "soon", "later")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("plain", ["wal", "delete"], indirect=True)
@pytest.mark.parametrize("workers", ["threads", "aiosqlite"], indirect=True)
def test_producers_and_workers_of_a_process_wake_each_other_with_wal_and_without(
    workers: Workers,
) -> None:
    with idle(workers, Parcel), Session(workers.plain) as session:
        session.add(Parcel(name="flushed"))
        session.commit()
        until_handled(workers, "flushed")
        add_later(workers.plain, Parcel, "later", seconds=1)
        until_handled(workers, "flushed", "later")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("workers", ["aiosqlite"], indirect=True)
def test_a_producer_in_the_loop_of_a_worker_wakes_it(workers: Workers) -> None:
    async def note_and_add_later(postcard: Postcard) -> None:
        workers.note(postcard)
        if postcard.name == "a":
            tasks.append(asyncio.create_task(add()))

    async def add() -> None:
        await asyncio.sleep(0.3)  # the worker is idle then
        async with new_async_session(AsyncEngine(workers.engine)) as session:
            await enqueue(session, Postcard, [{"name": "b"}])
            await session.commit()

    tasks: list[asyncio.Task[None]] = []
    with idle(workers, workers.queue(Postcard, note_and_add_later)):
        add_later(workers.plain, Postcard, "a")
        until_handled(workers, *"ab")


@pytest.mark.parametrize("workers", ["threads"], indirect=True)
def test_two_workers_of_a_process_are_both_woken(workers: Workers) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(postcard: Postcard) -> None:
        both.wait()
        workers.note(postcard)

    with (
        idle(workers, workers.queue(Postcard, meet)),
        idle(Workers("threads", workers.plain), workers.queue(Postcard, meet)),
        Session(workers.plain) as session,
    ):
        session.add_all([Postcard(name="a"), Postcard(name="a")])
        session.commit()
        until_handled(workers, *"aa")


@pytest.mark.parametrize("workers", ["threads"], indirect=True)
def test_a_job_in_the_pause_after_wake_ups_for_nothing_is_handled_at_its_end(
    workers: Workers,
) -> None:
    queue = workers.queue(Hostile, lambda job: workers.handled.append("found"))

    with idle(workers, queue), Session(workers.plain) as session:
        for _ in range(20):
            session.add(Hostile())
            session.flush()
            claim(session, Hostile, owner="w")
            session.commit()
        session.add(Hostile())
        session.commit()
        until_handled(workers, "found")
