"""run_all for an AsyncSession: what is due is handled inside of a test's own transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.testing.asyncio import run_all
from sa_jobqueue.worker import job_context
from tests.contract.asyncio.support import (
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
)
from tests.models import Task

#: Where the driver cannot matter.
pytestmark = pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])


@in_event_loop
async def test_the_jobs_after_an_exception_are_not_claimed(
    async_engine: AsyncEngine, session: Session
) -> None:
    session.add_all([Task(name=name) for name in "abc"])
    session.commit()
    queue = AsyncJobQueue(JobQueue(Task))
    left: list[timedelta | None] = []

    @queue.handler(timeout=timedelta(minutes=5))  # type: ignore[untyped-decorator]  # for both
    async def handle(task: Task) -> None:
        left.append(job_context().time_left)
        if task.name == "b":
            raise OSError("no route")

    async with AsyncSession(async_engine) as inside:
        with pytest.raises(OSError, match="no route"):
            await run_all(inside, queue)
        found = await inside.execute(select(Task.name, Task.status, Task.attempts))
        states = {name: (status, attempts) for name, status, attempts in found}
        await inside.rollback()

    assert states == {"a": ("done", 1), "b": ("unclaimed", 1), "c": ("unclaimed", 0)}
    assert all(time is not None and time > timedelta(minutes=4) for time in left)


@pytest.mark.parametrize("transactional", [False, True])
@in_event_loop
async def test_awaited_handlers_are_called_and_nothing_is_committed(
    async_engine: AsyncEngine, session: Session, transactional: bool
) -> None:
    queue = AsyncJobQueue(JobQueue(Task))
    handled: list[str] = []

    async def handle(task: Task) -> None:
        handled.append(task.name)

    async def handle_in(own: AsyncSession, task: Task) -> None:
        task.priority = 7
        await own.flush()
        handled.append(task.name)

    if transactional:
        queue.handler(transactional=True)(handle_in)
    else:
        queue.handler(handle)

    async with async_engine.connect() as connection:
        transaction = await connection.begin()
        async with AsyncSession(
            connection, join_transaction_mode="create_savepoint", expire_on_commit=False
        ) as inside:
            inside.add(Task(name="a"))
            outcomes = [done.outcome for done in await run_all(inside, queue)]
            assert (handled, outcomes) == (["a"], [None])
            found = (await inside.scalars(select(Task))).one()
            assert (found.status, found.priority == 7) == ("done", transactional)
        await transaction.rollback()

    assert session.scalars(select(Task)).all() == []
