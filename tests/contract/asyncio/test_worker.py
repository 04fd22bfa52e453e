"""What only an AsyncWorker does; tests/contract/worker has what it does as a Worker does."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, Claim, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Outcome, job_context
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.contract.worker.faults import LostAnswer
from tests.models import Base, Task, add_tasks
from tests.support import cut_connections, make_engine

SOON = timedelta(milliseconds=20)

#: Where the driver cannot matter.
TWO = pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])


async def drain(engine: AsyncEngine, handler: Any, **options: Any) -> None:
    queue = handler if isinstance(handler, JobQueue) else JobQueue(Task)
    handler = None if isinstance(handler, JobQueue) else handler
    worker = AsyncWorker(engine, queue, handler, **{"drain": True, "poll": SOON, **options})
    await asyncio.wait_for(worker.run(), 30)


def statuses(session: Session) -> dict[str, str]:
    session.rollback()
    return {task.name: task.status for task in session.scalars(select(Task))}


async def nothing(task: Task) -> None: ...


@pytest.mark.parametrize("transactional", [False, True])
@in_event_loop
async def test_each_driver_handles_each_job_once_while_a_commit_is_not_answered(
    async_engine: AsyncEngine, session: Session, transactional: bool
) -> None:
    add_tasks(session, *"abcdef", max_attempts=1)
    queue = JobQueue(Task)
    handled: list[str] = []

    async def handle(task: Task) -> None:
        handled.append(task.name)

    async def handle_in(own: AsyncSession, task: Task) -> None:
        await own.execute(update(Task).where(Task.id == task.id).values(priority=7))
        handled.append(task.name)

    queue.handler(transactional=transactional)(handle_in if transactional else handle)  # type: ignore[call-overload]  # either
    with LostAnswer(async_engine.sync_engine, 1):
        await drain(async_engine, queue, limit=2, owner="w")

    assert sorted(handled) == list("abcdef")
    assert set(statuses(session).values()) == {"done"}


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_worker_whose_connections_are_cut_finishes_what_it_had_handled(
    fresh_database: URL, driver: str, db_alias: str
) -> None:
    plain, engine = make_engine(fresh_database), make_async_engine(fresh_database, driver)
    Base.metadata.create_all(plain)
    with Session(plain) as session:
        add_tasks(session, *"abc")
    plain.dispose()
    handled: list[str] = []

    async def handle(task: Task) -> None:
        handled.append(task.name)
        if task.name == "b":
            cut_connections(fresh_database, db_alias)

    await drain(engine, handle, limit=2)
    await engine.dispose()

    assert handled == list("abc")
    with Session(plain) as session:
        assert set(statuses(session).values()) == {"done"}
    plain.dispose()


@TWO
@in_event_loop
async def test_a_handler_that_cancels_its_own_task_leaves_the_next_jobs_alone(
    async_engine: AsyncEngine, session: Session
) -> None:
    """A count of cancellations that a handler leaves behind is not a cancelled run."""
    add_tasks(session, *"abcd", max_attempts=1)

    async def handle(task: Task) -> None:
        if task.name in "ab":
            own = asyncio.current_task()
            assert own is not None
            own.cancel()
        if task.name == "b":
            await asyncio.sleep(0)
        if task.name == "c":
            raise asyncio.CancelledError

    await drain(async_engine, handle, limit=1)

    assert statuses(session) == {"a": "done", "b": "failed", "c": "failed", "d": "done"}


@TWO
@in_event_loop
async def test_callbacks_may_be_awaited(async_engine: AsyncEngine, session: Session) -> None:
    add_tasks(session, *"ab")
    told: list[object] = []

    async def on_claim(claimed: Claim[Task]) -> None:
        await asyncio.sleep(0)
        told.append(len(claimed))

    async def on_outcome(task: Task, outcome: Outcome) -> None:
        await asyncio.sleep(0)
        told.append((task.name, outcome))

    await drain(async_engine, nothing, limit=2, on_claim=on_claim, on_outcome=on_outcome)

    assert told == [2, ("a", None), ("b", None)]


@TWO
@in_event_loop
async def test_several_workers_in_one_loop_handle_every_job_once(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *map(str, range(60)))
    handled: Counter[str] = Counter()

    async def handle(task: Task) -> None:
        await asyncio.sleep(0)
        handled[task.name] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            options = {"limit": 4, "concurrency": 2, "owner": f"worker-{number}"}
            group.create_task(drain(async_engine, handle, **options))

    assert (len(handled), set(handled.values())) == (60, {1})
    assert set(statuses(session).values()) == {"done"}


@TWO
@in_event_loop
async def test_what_a_handler_sets_in_its_context_its_own_tasks_see_and_no_other(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abc")
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[tuple[str, str, str]] = []

    async def ask() -> str:
        await asyncio.sleep(0)
        return job_context().owner

    async def handle(task: Task) -> None:
        before = tenant.get()
        tenant.set(task.name)
        await asyncio.sleep(0.001)
        seen.append((before, tenant.get(), await asyncio.create_task(ask())))

    await drain(async_engine, handle, limit=3, concurrency=2, owner="w")

    assert sorted(seen) == [("none", name, "w") for name in "abc"]
    assert tenant.get() == "none"


@TWO
def test_a_worker_that_has_drained_may_run_again_in_another_loop(
    async_engine: AsyncEngine, session: Session
) -> None:
    worker = AsyncWorker(async_engine, JobQueue(Task), nothing, drain=True, poll=SOON)

    async def run() -> None:
        await worker.run()
        await async_engine.dispose()

    for name in "ab":
        add_tasks(session, name)
        asyncio.run(run())

    assert statuses(session) == {"a": "done", "b": "done"}


@in_event_loop
async def test_a_database_in_memory_has_no_second_connection_and_no_heartbeat() -> None:
    queue = JobQueue(Task)
    tasks: set[str] = set()

    @queue.handler(timeout=timedelta(milliseconds=50))
    async def send(task: Task) -> None:
        tasks.update(each.get_name() for each in asyncio.all_tasks())
        if task.name == "a":
            await asyncio.sleep(60)
        if task.name == "b":
            raise asyncio.CancelledError

    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with new_async_session(engine) as own:
        own.add_all(Task(name=name, max_attempts=1) for name in "abc")
        await own.commit()
        with pytest.raises(ArgumentError, match="one connection, and concurrency= needs more"):
            await drain(engine, queue, concurrency=2)
        await drain(engine, queue)
        found = await own.scalars(
            select(Task).order_by(Task.id).execution_options(populate_existing=True)
        )
        assert [task.status for task in found] == ["failed", "failed", "done"]
    await engine.dispose()

    assert "sa_jobqueue worker" in tasks
    assert "sa_jobqueue heartbeat" not in tasks
