"""The verbs for an AsyncSession, by every async driver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from sa_jobqueue import ClaimLost, ConstantBackoff, JobQueue, JobStatus, NotClaimed
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
    positions,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
    stats,
)
from sa_jobqueue.overview import overview
from tests.contract.asyncio.support import in_event_loop, new_async_session
from tests.models import Email, Task, add_emails, add_tasks, names, recipients

LEASE = timedelta(minutes=5)


@in_event_loop
async def test_a_batch_is_enqueued_claimed_and_completed(
    async_engine: AsyncEngine, driver: str
) -> None:
    async with new_async_session(async_engine) as session:
        rows = [{"recipient": recipient} for recipient in "abc"]
        assert await enqueue(session, Email, rows) == 3
        await session.commit()

        emails = await claim(session, Email, Email.recipient != "c", owner=driver, limit=5)
        await session.commit()
        await complete(session, emails)
        await session.commit()

        assert sorted(recipients(emails)) == ["a", "b"]
        assert {email.owner for email in emails} == {driver}
        counts = await count_by_status(session, Email)
        assert (counts["done"], counts["unclaimed"]) == (2, 1)


@in_event_loop
async def test_awaited_finishes_write_own_columns(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a", "b")
    async with new_async_session(async_engine) as own:
        first, second = await claim(own, Email, owner="w", limit=2)
        await complete(own, first, values={Email.subject: "x"})
        queue = AsyncJobQueue(JobQueue(Email))
        await queue.release(own, second, values=lambda email: {Email.subject: email.recipient})
        await own.commit()

        assert (first.subject, second.subject) == ("x", "b")
    assert session.scalars(select(Email.subject).order_by(Email.id)).all() == ["x", "b"]


@in_event_loop
async def test_jobs_are_failed_released_cancelled_and_deleted(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abcd")
    async with new_async_session(async_engine) as own:
        tasks = await claim(own, Task, owner="w", limit=4)
        await own.commit()

        await fail(own, tasks[0], error=ValueError("no"), retry_in=timedelta(minutes=1))
        await release(own, tasks[1])
        await cancel_claimed(own, tasks[2], reason="no use")
        await complete(own, tasks[3], delete=True)
        await own.commit()

    found = {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}
    assert found == {"a": ("unclaimed", 1), "b": ("unclaimed", 0), "c": ("cancelled", 1)}


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
async def test_a_claim_is_renewed_and_found_again_by_its_owner(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as other:
        (email,) = await claim(own, Email, owner="w")
        before = email.owner_date
        await own.commit()
        await renew(own, email)
        await own.commit()

        (again,) = await claimed_by(other, Email, "w")
        await complete(other, again)
        await other.commit()

        assert before is not None
        assert again.owner_date is not None
        assert again.owner_date > before
        assert again.status == JobStatus.DONE


@in_event_loop
async def test_jobs_are_cancelled_reprioritized_retried_and_pruned(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abc")
    async with new_async_session(async_engine) as own:
        a, b, c = (await own.scalars(select(Task).order_by(Task.id))).all()

        assert names(await cancel(own, [a, b])) == ["a", "b"]
        assert names(await retry(own, b)) == ["b"]
        assert names(await reprioritize(own, [b, c], -1)) == ["b", "c"]
        await own.commit()
        pruned = await prune(
            own, Task, older_than=timedelta(0), statuses=[JobStatus.CANCELLED], limit=10
        )
        await own.commit()

        seen = await stats(own, Task)
        assert (pruned, seen.depth, seen.scheduled) == (1, 2, 0)
        assert seen.oldest_waiting is not None


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
async def test_claims_are_taken_back_after_their_lease(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"ab")
    async with new_async_session(async_engine) as own:
        emails = await claim(own, Email, owner="w", limit=2)
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        await own.execute(update(Email).where(Email.id == emails[0].id).values(owner_date=long_ago))
        await own.commit()

        reaped = await reap(own, Email, lease=LEASE)
        await own.commit()

        assert reaped.by_owner == {"w": 1}
        assert (await count_by_status(own, Email))["unclaimed"] == 1


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
async def test_an_entity_that_was_not_claimed_is_refused_through_await(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own:
        email = (await own.scalars(select(Email))).one()

        with pytest.raises(NotClaimed):
            await complete(own, email)


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
async def test_a_turn_under_autocommit_tells_which_jobs_were_lost(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email))
    autocommit = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with new_async_session(autocommit) as own:
        first = await queue.claim(own, owner="w", limit=2)
        session.execute(update(Email).where(Email.recipient == "b").values(owner="another"))
        session.commit()

        with pytest.raises(ClaimLost) as caught:
            await queue.turn(own, first, owner="w", limit=2, delete=True)

        left = session.execute(select(Email.recipient, Email.status).order_by(Email.id)).all()

    assert (recipients(caught.value.kept), recipients(caught.value.lost)) == (["a"], ["b"])
    assert [tuple(row) for row in left] == [
        ("b", "claimed"),
        ("c", "unclaimed"),
        ("d", "unclaimed"),
    ]


@in_event_loop
async def test_a_queue_has_its_verbs_awaited(async_engine: AsyncEngine, session: Session) -> None:
    add_tasks(session, *"abcdefg")
    queue = AsyncJobQueue(JobQueue(Task, Task.name != "g", lease=LEASE))
    async with new_async_session(async_engine) as own:
        first = await queue.claim(own, owner="w", limit=2)
        await queue.renew(own, first)
        second = await queue.turn(own, first, owner="w", limit=2)
        await queue.release(own, second[0])
        await queue.fail(own, second[1], error="no", retry_in=timedelta(0))
        await own.commit()
        rows = await queue.claim_rows(own, owner="v", limit=2)
        await queue.cancel_claimed(own, rows.fences[0])
        await queue.complete(own, rows.fences[1])
        await queue.claim(own, owner="u")
        await own.commit()

        assert len(await queue.claimed_by(own, "u")) == 1
        ready = select(Task).where(Task.status == "unclaimed").order_by(Task.id)
        waiting = (await own.scalars(ready)).all()
        assert await queue.positions(own, waiting) == [1, None]
        assert await positions(own, waiting) == [2, 1]  # the failed job is due after the others
        found = (await queue.position(own, waiting[0]), await position(own, waiting[0]))
        assert found == (1, 2)
        assert not await queue.reap(own)
        counts = await count_by_status(own, Task)
    assert (counts["done"], counts["cancelled"], counts["claimed"], counts["unclaimed"]) == (
        3,
        1,
        1,
        2,
    )


@in_event_loop
async def test_an_overview_is_read_by_run_sync(async_engine: AsyncEngine, session: Session) -> None:
    add_emails(session, "a", "b")
    async with new_async_session(async_engine) as own:
        seen = await own.run_sync(overview, [Email, AsyncJobQueue(JobQueue(Email))])

    assert [(queue.name, queue.due.number) for queue in seen] == [("email", 2)] * 2
