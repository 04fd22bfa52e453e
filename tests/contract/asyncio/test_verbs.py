"""The verbs for an AsyncSession, by every async driver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

import sa_jobqueue
from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import (
    AsyncJobQueue,
    cancel,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    count_by_status,
    enqueue,
    fail,
    position,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
    stats,
)

# Inner: docs/reference/observing.md offers overview() there alone.
from sa_jobqueue.counts import overview
from tests.contract.asyncio.support import in_event_loop, new_async_session
from tests.models import Email, Task, add_emails, add_tasks, names

LEASE = timedelta(minutes=5)
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


@in_event_loop
async def test_jobs_live_through_every_verb_awaited(
    async_engine: AsyncEngine, session: Session
) -> None:
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as other:
        assert await enqueue(own, Task, [{"name": name} for name in "abcdefg"], priority=1) == 7
        await own.commit()
        a, b, c, d, e = await claim(own, Task, Task.name != "g", owner="w", limit=5)
        await renew(own, a)
        await own.commit()
        await fail(own, a, error=ValueError("no"), retry_in=timedelta(minutes=1))
        await release(own, b)
        await cancel_claimed(own, c, reason="no use")
        await complete(own, d, values={Task.touched: "x"})
        await own.commit()

        assert names(await claimed_by(other, Task, "w")) == ["e"]
        await other.execute(update(Task).where(Task.id == e.id).values(owner_date=LONG_AGO))
        assert (await reap(other, Task, lease=LEASE)).by_owner == {"w": 1}
        f = (await other.scalars(select(Task).where(Task.name == "f"))).one()
        assert names(await cancel(other, f)) == names(await retry(other, f)) == ["f"]
        assert names(await reprioritize(other, f, 0)) == ["f"]
        assert await position(other, f) == 1
        assert await prune(other, Task, older_than=timedelta(0), statuses=["cancelled"]) == 1
        (seen,) = await other.run_sync(overview, [AsyncJobQueue(JobQueue(Task))])
        assert (seen.name, seen.due.number) == ("task", 4)
        assert (await stats(other, Task)).next_due is not None
        await other.commit()

    found = {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}
    assert session.scalars(select(Task.touched).where(Task.name == "d")).one() == "x"
    assert found == dict.fromkeys("befg", ("unclaimed", 0)) | {
        "d": ("done", 1),
        "a": ("unclaimed", 1),
        "e": ("unclaimed", 1),
    }


@in_event_loop
async def test_the_methods_of_a_queue_are_those_of_its_own_kind(
    async_engine: AsyncEngine, session: Session
) -> None:
    queue = AsyncJobQueue(JobQueue(Task, Task.name != "d", lease=LEASE))
    async with new_async_session(async_engine) as own:
        await queue.enqueue(own, [{"name": name} for name in "abcd"])
        first = await queue.claim(own, owner="w", limit=2)
        (second,) = await queue.turn(own, first, owner="w")
        await queue.release(own, second)
        await own.commit()
        rows = await queue.claim_rows(own, owner="v", limit=2)
        await queue.complete(own, rows)
        await own.commit()

        counted = await queue.count_by_status(own)
        everywhere = await count_by_status(own, Task)
        assert (counted["done"], counted["unclaimed"], everywhere["unclaimed"]) == (3, 0, 1)


@in_event_loop
async def test_a_claim_loads_the_job_that_it_changed_and_a_refresh_another(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, "a")
    async with new_async_session(async_engine) as own:
        [task] = await claim(own, Task, owner="w")
        await complete(own, task)
        assert task.status == "done"
        await own.commit()

        await retry(own, task)
        assert "status" in instance_state(task).expired_attributes
        await own.refresh(task)

        assert task.status == "unclaimed"


@in_event_loop
async def test_a_scoped_session_claims_and_finishes(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    maker = async_sessionmaker(async_engine, expire_on_commit=False)
    scoped = async_scoped_session(maker, scopefunc=asyncio.current_task)

    emails = await claim(scoped, Email, owner="w")
    await complete(scoped, emails)
    await scoped.commit()
    await scoped.remove()

    assert session.scalars(select(Email.status)).all() == ["done"]


@in_event_loop
async def test_a_synchronous_session_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"an AsyncSession is needed, .* from sa_jobqueue,"):
        await claim(Session(), Email, owner="w")  # type: ignore[arg-type]  # what is refused


def test_an_async_session_is_refused_by_the_synchronous_verbs_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"sa_jobqueue\.asyncio"):
        sa_jobqueue.claim(AsyncSession(), Email, owner="w")  # type: ignore[arg-type]  # refused
