"""A worker in an event loop stops, is cancelled, and outlives its server."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker.idle import Idle
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
)
from tests.contract.asyncio.worker_support import draining, nothing, states, statuses
from tests.contract.worker.faults import Faults, deadlock, faults_in
from tests.models import Email, Task, add_emails, add_tasks
from tests.support import cut_connections

SOON = timedelta(milliseconds=20)


# Stopping


@pytest.mark.parametrize("by", ["task", "thread", "signal"])
@in_event_loop
async def test_stopping_lets_the_running_jobs_finish_and_releases_the_rest(
    async_engine: AsyncEngine, session: Session, by: str
) -> None:
    add_tasks(session, *"abcd")

    def stop() -> None:
        if by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif by == "thread":
            threading.Thread(target=worker.stop).start()
        else:
            worker.stop()

    async def handler(task: Task) -> None:
        if task.name == "b":  # both run
            stop()
        while not worker.stopping:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    worker: AsyncWorker[Task] = AsyncWorker(
        async_engine, JobQueue(Task), handler, limit=4, concurrency=2
    )
    with worker.stopping_on_signals():
        await asyncio.wait_for(worker.run(), 20)

    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("done", 1),
        "b": ("done", 1),
        "c": ("unclaimed", 0),
        "d": ("unclaimed", 0),
    }


@in_event_loop
async def test_an_idle_worker_stops_at_once(
    async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = asyncio.Event()
    worker = AsyncWorker(async_engine, JobQueue(Email), nothing, poll=timedelta(minutes=5))
    monkeypatch.setattr(Idle, "claim_at", idling(idle))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(idle.wait(), 20)

    await asyncio.to_thread(worker.stop)

    await asyncio.wait_for(running, 20)


def idling(idle: asyncio.Event) -> Callable[..., float]:
    """Set an event when a worker is idle, and let it never claim again by itself."""

    def never(pauses: Idle, **found: bool) -> float:
        idle.set()
        return math.inf

    return never


@pytest.mark.parametrize("by", ["stop", "cancel"])
@in_event_loop
async def test_a_worker_that_waits_to_claim_stops_at_once(
    async_engine: AsyncEngine, session: Session, db_alias: str, by: str
) -> None:
    add_emails(session, "a")
    waiting = asyncio.Event()

    def fail(connection: Any) -> None:
        waiting.set()
        raise deadlock(db_alias)

    worker = AsyncWorker(async_engine, JobQueue(Email), nothing, owner="w", reap_every=None)
    with faults_in(async_engine.sync_engine, Faults(0, fail, times=10_000)):
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(waiting.wait(), 20)
        worker.stop() if by == "stop" else running.cancel()
        await asyncio.wait({running}, timeout=5)

    assert running.done()
    assert running.cancelled() is (by == "cancel")
    assert statuses(session) == {"a": "unclaimed"}


@in_event_loop
async def test_a_cancelled_worker_cancels_its_handlers_and_releases_their_jobs(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abcd")
    running = asyncio.Barrier(3)  # two handlers and this test
    cancelled: list[str] = []

    async def handler(task: Task) -> None:
        if task.name == "a":
            return
        await running.wait()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(task.name)
            raise

    worker = AsyncWorker(async_engine, JobQueue(Task), handler, limit=4, concurrency=2)
    run = asyncio.create_task(worker.run())
    await asyncio.wait_for(running.wait(), 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)

    assert sorted(cancelled) == ["b", "c"]
    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("done", 1),
        "b": ("unclaimed", 0),
        "c": ("unclaimed", 0),
        "d": ("unclaimed", 0),
    }


@pytest.mark.parametrize("moment", ["begin", "commit"])
@in_event_loop
async def test_a_worker_that_is_cancelled_in_a_turn_leaves_nothing_claimed(
    async_engine: AsyncEngine, session: Session, moment: str
) -> None:
    add_tasks(session, *"ab")
    claims: list[object] = []

    def cancel(connection: object) -> None:
        if claims and not worker.stopping:
            run.cancel()

    event.listen(async_engine.sync_engine, moment, cancel)
    worker = AsyncWorker(
        async_engine, JobQueue(Task), nothing, reap_every=None, on_claim=claims.append
    )
    run = asyncio.create_task(worker.run())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)

    assert "claimed" not in {state[0] for state in states(session).values()}
    assert states(session)["a"][:2] == ("done", 1)


@in_event_loop
async def test_a_cancelled_worker_can_be_cancelled_once_more(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(email: Email) -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
            await asyncio.sleep(60)  # a handler that catches its cancellation

    run = asyncio.create_task(AsyncWorker(async_engine, JobQueue(Email), handler).run())
    await asyncio.wait_for(running.wait(), 20)
    run.cancel()
    await asyncio.wait_for(cancelled.wait(), 20)
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(run), 20)


@pytest.mark.parametrize("concurrency", [1, 2])
@in_event_loop
async def test_the_end_of_an_event_loop_fails_no_attempt(
    async_engine: AsyncEngine, session: Session, concurrency: int
) -> None:
    add_tasks(session, *"ab")
    running = asyncio.Barrier(concurrency + 1)

    async def handler(task: Task) -> None:
        await running.wait()
        await asyncio.sleep(60)

    worker = AsyncWorker(async_engine, JobQueue(Task), handler, concurrency=concurrency)
    run = asyncio.create_task(worker.run())
    await asyncio.wait_for(running.wait(), 20)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:  # as asyncio.run() does
        task.cancel()
    await asyncio.wait(others, timeout=20)

    assert run.cancelled()
    assert {error for _, _, error in states(session).values()} == {None}


@pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])
def test_a_worker_that_has_drained_may_run_again_in_another_loop(
    async_engine: AsyncEngine, session: Session
) -> None:
    worker = draining(async_engine, JobQueue(Email), nothing, interval=SOON)

    async def run() -> None:
        await worker.run()
        await async_engine.dispose()

    for recipient in "ab":
        add_emails(session, recipient)
        asyncio.run(run())

    assert statuses(session) == {"a": "done", "b": "done"}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_handler_that_ends_the_process_has_had_its_attempt(
    async_engine: AsyncEngine, session: Session, exit_: type[BaseException], concurrency: int
) -> None:
    add_tasks(session, *"abc", max_attempts=2)

    async def handler(task: Task) -> None:
        if task.name == "b":
            await asyncio.sleep(0)
            raise exit_

    async def run() -> None:
        try:
            queue = JobQueue(Task)
            await draining(async_engine, queue, handler, limit=2, concurrency=concurrency).run()
        finally:
            await async_engine.dispose()

    with pytest.raises(exit_):
        asyncio.run(run())

    assert states(session) == {
        "a": ("done", 1, None),
        "b": ("unclaimed", 1, f"{exit_.__name__}: "),
        "c": ("unclaimed", 0, None),
    }


# Servers that go away


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_worker_whose_connections_are_cut_finishes_what_it_had_handled(
    apart: AsyncEngine, fresh_database: URL, db_alias: str
) -> None:
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "b":
            cut_connections(fresh_database, db_alias)

    await asyncio.wait_for(draining(apart, JobQueue(Email), handler, limit=2).run(), 30)

    assert handled == list("abc")


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_worker_waits_for_a_server_that_is_away_for_a_while(
    apart: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [refused_by_the_host, refused_by_a_server_that_starts]
    connect = apart.dialect.connect
    away = asyncio.Event()

    def connect_or_not(*args: Any, **given: Any) -> Any:
        if away.is_set() and refusals:
            return refusals.pop(0)(connect, *args, **given)
        return connect(*args, **given)

    async def handler(email: Email) -> None:
        await apart.dispose()
        away.set()

    monkeypatch.setattr(apart.dialect, "connect", connect_or_not)
    await asyncio.wait_for(draining(apart, JobQueue(Email), handler, limit=2).run(), 30)

    assert refusals == []


def refused_by_the_host(connect: Callable[..., Any], *args: Any, **given: Any) -> Any:
    return connect(*args, **{**given, "port": 1})


def refused_by_a_server_that_starts(connect: Any, *args: Any, **given: Any) -> Any:
    if "asyncpg" not in type(connect.__self__).__module__:
        return refused_by_the_host(connect, *args, **given)
    # The error as SQLAlchemy 2.0 raises it.
    raise connect.__self__.dbapi.asyncpg.CannotConnectNowError("the database is starting up")
