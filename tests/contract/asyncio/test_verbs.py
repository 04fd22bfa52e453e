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
from sa_jobqueue import ArgumentError, ClaimLost, ConstantBackoff, JobQueue
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
from sa_jobqueue.events import Event, listen, remove
from tests.contract.asyncio.support import in_event_loop, new_async_session
from tests.models import Email, Task, add_emails, add_tasks, names, recipients

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
async def test_duplicates_are_skipped_and_failed_jobs_are_delayed_by_the_queues_policy(
    async_engine: AsyncEngine, session: Session, db_alias: str
) -> None:
    queue = AsyncJobQueue(JobQueue(Task, backoff=ConstantBackoff(timedelta(hours=1), jitter=0)))
    rows = [{"id": number, "name": str(number)} for number in (1, 2, 1)]
    async with new_async_session(async_engine) as own:
        told = await enqueue(own, Task, rows, skip_duplicates=True)
        again = await enqueue(own, Task, [*rows, {"id": 3, "name": "3"}], skip_duplicates=True)
        await queue.fail(own, await queue.claim(own, owner="w", limit=5))
        await own.commit()

    server = db_alias in ("mysql", "mariadb")
    assert (told, again) == ((None, None) if server else (2, 1))
    tasks = session.scalars(select(Task)).all()
    soon = datetime.now(UTC) + timedelta(minutes=58)
    assert [(task.status, task.run_at > soon) for task in tasks] == [("unclaimed", True)] * 3


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
async def test_lost_claims_are_raised_through_await_and_the_rest_is_written(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abc")
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as other:
        emails = await claim(own, Email, owner="w", limit=3)
        await own.commit()
        await release(other, emails.fences[1])
        await other.commit()

        with pytest.raises(ClaimLost) as raised:
            await complete(own, emails)
        await own.commit()

        assert recipients(raised.value.lost) == ["b"]
        assert (await count_by_status(own, Email))["done"] == 2


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


@in_event_loop
async def test_an_async_session_tells_after_its_commit(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    queue, heard = AsyncJobQueue(JobQueue(Email)), list[Event]()
    for name in ("after_claim", "after_finish"):
        listen(queue, name, heard.append)

    async with new_async_session(async_engine) as awaited:
        await queue.claim(awaited, owner="w")
        await awaited.rollback()
        claimed = await queue.claim(awaited, owner="w")
        assert heard == []
        await awaited.commit()
        await queue.complete(awaited, claimed)
        await awaited.commit()
    for name in ("after_claim", "after_finish"):
        remove(queue, name, heard.append)

    assert [event.name for event in heard] == ["after_claim", "after_finish"]
