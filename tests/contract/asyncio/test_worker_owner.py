"""Leases, owners and reaping of a worker in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner, OwnerState
from sa_jobqueue.asyncio import claim, owner_state
from sa_jobqueue.asyncio.tasks import Tasks
from sa_jobqueue.owners.alive import owner_states
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    new_async_session,
)
from tests.contract.asyncio.worker_support import draining, nothing, statuses
from tests.contract.worker.support import dates, hands_of
from tests.models import Base, Email, add_emails
from tests.support import cut_connections, make_engine, until

SHORT_LEASE = timedelta(milliseconds=600)


# Costs


@in_event_loop
async def test_a_lock_that_nothing_speaks_against_is_looked_at_without_a_thread(
    async_engine: AsyncEngine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, *map(str, range(20)))
    in_threads: list[object] = []
    run_blocking = Tasks.run_blocking

    def counted(self: Tasks, work: Callable[[], Any]) -> Any:
        in_threads.append(work)
        return run_blocking(self, work)

    monkeypatch.setattr(Tasks, "run_blocking", counted)

    await draining(async_engine, JobQueue(Email), nothing, limit=1).run()

    assert set(statuses(session).values()) == {"done"}
    assert len(in_threads) < 10  # the owner is opened and closed, and what it hears is read


# Lease and heartbeat


@in_event_loop
async def test_a_long_running_job_and_the_jobs_behind_it_keep_their_claims_beyond_the_lease(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"ab")

    def renewed_for_two_leases(claimed: datetime) -> bool:
        return min(dates(session).values()) > claimed + 2 * SHORT_LEASE

    async def handler(email: Email) -> None:
        if email.recipient == "a":
            claimed = max(dates(session).values())
            # Not by a reap in between: a busy machine may renew late.
            await asyncio.to_thread(until, lambda: renewed_for_two_leases(claimed))

    await draining(
        async_engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=2, owner="plain"
    ).run()

    assert statuses(session) == {"a": "done", "b": "done"}
    assert "sa_jobqueue heartbeat" not in {task.get_name() for task in asyncio.all_tasks()}


@in_event_loop
async def test_claims_that_were_lost_are_not_handled(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abc")
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            session.execute(text("UPDATE email SET owner = 'thief' WHERE recipient = 'b'"))
            session.commit()
            while not any(job.lost for job in hands_of(worker._worker).all):
                await asyncio.sleep(0.02)

    worker = draining(async_engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=3)
    await asyncio.wait_for(worker.run(), 20)

    assert handled == ["a", "c"]
    assert statuses(session) == {"a": "done", "b": "claimed", "c": "done"}


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
@in_event_loop
async def test_a_worker_on_a_database_in_memory_has_no_heartbeat(driver: str) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with new_async_session(engine) as own:
        own.add(Email(recipient="a"))
        await own.commit()
    tasks: set[str] = set()

    async def handler(email: Email) -> None:
        tasks.update(task.get_name() for task in asyncio.all_tasks())

    await draining(engine, JobQueue(Email), handler).run()
    await engine.dispose()

    assert "sa_jobqueue worker" in tasks
    assert "sa_jobqueue heartbeat" not in tasks


# Owners and reaping


@in_event_loop
async def test_a_worker_claims_as_the_owner_it_is_given(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, "a")

    with Owner(engine) as owner:
        await draining(async_engine, JobQueue(Email), nothing, owner=owner).run()
        name = owner.name

    assert session.scalars(select(Email.owner)).all() == [name]


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_an_owner_that_loses_its_lock_takes_another_beside_the_event_loop(
    apart: AsyncEngine, fresh_database: URL, db_alias: str
) -> None:
    engine = make_engine(fresh_database)
    connecting: set[threading.Thread] = set()
    claimed_as: set[str | None] = set()

    async def handler(email: Email) -> None:
        claimed_as.add(email.owner)
        if email.recipient == "a":
            assert owner._held is not None
            lock = owner._held.lock
            cut_connections(fresh_database, db_alias)
            while not lock.lost:
                await asyncio.sleep(0.02)
            event.listen(engine, "do_connect", connect)

    def connect(*args: object) -> None:
        connecting.add(threading.current_thread())

    with Owner(engine) as owner:
        worker = draining(apart, JobQueue(Email), handler, owner=owner)
        await asyncio.wait_for(worker.run(), 30)
        claimed_as.discard(owner.name)
    event.remove(engine, "do_connect", connect)
    engine.dispose()

    assert len(claimed_as) == 1  # the owner name that was lost
    assert connecting
    assert threading.main_thread() not in connecting


@in_event_loop
async def test_a_worker_has_an_owner_of_its_own(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    states: list[OwnerState] = []

    async def handler(email: Email) -> None:
        async with new_async_session(async_engine) as own:
            states.append(await owner_state(own, str(email.owner)))

    await draining(async_engine, JobQueue(Email), handler).run()

    (name,) = session.scalars(select(Email.owner))
    assert name is not None
    states.append(owner_states(session.connection(), [name])[name])
    assert states == [OwnerState.ALIVE, OwnerState.DEAD]


@in_event_loop
async def test_claims_of_the_dead_are_taken_back_and_handled(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        async with new_async_session(async_engine) as own:
            await claim(own, Email, owner=owner)
            await own.commit()
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)

    await draining(async_engine, JobQueue(Email), handler).run()

    assert handled == ["a"]
