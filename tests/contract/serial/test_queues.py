"""limit_by: at most n claimed jobs of each key; and what both kinds of keys refuse and keep."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, UnsupportedDatabase, complete, enqueue, fail
from sa_jobqueue.asyncio import AsyncJobQueue
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
)
from tests.contract.serial.keyed import (
    BY_ACCOUNT,
    THREE_EACH,
    Mail,
    Note,
    add,
    ids,
    locked_keys,
    run_consumers,
)
from tests.support import SERVERS

MOST = 3
NOTES = JobQueue(Note, limit_by={Note.account_id: MOST})


@pytest.mark.parametrize("queue", [THREE_EACH, NOTES], ids=["every mixin", "plain"])
def test_a_key_has_at_most_its_limit_of_claimed_jobs(
    session: Session, other: Session, queue: JobQueue[Any]
) -> None:
    jobs = add(session, queue.entity, *[1] * 5, 2)

    first = queue.claim(session, owner="w", limit=2)
    session.commit()
    second = queue.claim(other, owner="x", limit=9)
    other.commit()

    assert ids(first) == ids(jobs[:2])
    assert ids(second) == ids([jobs[2], jobs[5]])
    complete(session, first[0])
    session.commit()
    assert ids(queue.claim(other, owner="x", limit=9)) == ids([jobs[3]])


@pytest.mark.only_on(*SERVERS)
def test_uncommitted_claims_count_against_the_limit(session: Session, other: Session) -> None:
    add(session, Mail, *[1] * 5)
    *_, elsewhere = add(session, Mail, *[2] * 40)
    THREE_EACH.claim(session, owner="a", limit=2)

    assert {job.account_id for job in THREE_EACH.claim(other, owner="b", limit=9)} == {2}
    other.commit()
    session.commit()
    assert [job.account_id for job in THREE_EACH.claim(other, owner="b", limit=9)] == [1]
    assert elsewhere.status == "unclaimed"


def test_a_limit_of_several_columns_holds_for_their_values_together(session: Session) -> None:
    queue = JobQueue(Mail, limit_by={(Mail.region, Mail.host): 3})
    for region in ["eu", "us"]:
        add(session, Mail, *[1] * 5, region=region, host="a")

    jobs = queue.claim(session, owner="w", limit=20)

    assert [job.region for job in jobs] == ["eu"] * 3 + ["us"] * 3
    assert ids(queue.claim(session, owner="w", limit=20)) == []


@pytest.mark.parametrize(
    "queue",
    [
        BY_ACCOUNT,
        JobQueue(Mail, limit_by={Mail.account_id: 2}),
        JobQueue(Note, limit_by={Note.account_id: 2}),
    ],
    ids=["serial", "every mixin", "plain"],
)
def test_jobs_without_a_key_and_of_others_are_found_behind_many_of_a_full_key(
    session: Session, queue: JobQueue[Any]
) -> None:
    enqueue(session, queue.entity, [{"account_id": 1}] * 150)
    *_, none, also_none, last = add(session, queue.entity, 1, None, None, 2)
    queue.claim(session, owner="w", limit=1 if queue is BY_ACCOUNT else 2)

    jobs = queue.claim(session, owner="w", limit=4)

    assert ids(jobs) == [none.id, also_none.id, last.id]


def test_a_delayed_job_of_a_limited_key_blocks_no_other_job(session: Session) -> None:
    """The others are found even behind many jobs of other keys."""
    queue = JobQueue(Mail, limit_by={Mail.account_id: 1})
    add(session, Mail, 2)
    fail(session, queue.claim(session, owner="w"), retry_in=timedelta(hours=1))
    add(session, Mail, *[1] * 40)
    (last,) = add(session, Mail, 2)
    assert len(queue.claim(session, owner="w")) == 1

    assert ids(queue.claim(session, owner="w", limit=2)) == [last.id]


# Refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serial_by": "account_id"}, "takes attributes of Mail"),
        ({"serial_by": Note.account_id}, "takes attributes of Mail"),
        ({"serial_by": ()}, "names no column"),
        ({"limit_by": Mail.account_id}, "takes a dict"),
        ({"limit_by": {}}, "takes a dict"),
        ({"limit_by": {Mail.account_id: 0}}, "at least 1"),
        ({"limit_by": {Mail.account_id: True}}, "at least 1"),
        ({"limit_by": {Mail.account_id: 2, Mail.host: 3}}, "a dict of one key"),
        ({"serial_by": Mail.account_id, "limit_by": {Mail.host: 3}}, "leave limit_by= out"),
        ({"serial_by": Mail.account_id, "strategy": "held"}, "leave strategy='held' out"),
        ({"serial_by": Mail.account_id, "strict_order": True}, "leave strict_order=True out"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        JobQueue(Mail, **options)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("AUTOCOMMIT", "without AUTOCOMMIT"),
        ("REPEATABLE READ", "Begin the transaction as READ COMMITTED"),
        ("SERIALIZABLE", "Begin the transaction as READ COMMITTED"),
    ],
)
def test_a_transaction_that_would_not_see_the_second_look_is_refused(
    engine: Engine, db_alias: str, level: str, words: str
) -> None:
    if db_alias == "sqlite" and level != "AUTOCOMMIT":
        return  # one writer at a time sees everything
    with Session(engine.execution_options(isolation_level=level)) as session:
        add(session, Mail, 1)
        session.execute(select(Mail.id)).all()

        with pytest.raises(UnsupportedDatabase, match=words):
            BY_ACCOUNT.claim(session, owner="w")


# By an async session


@pytest.mark.parametrize("driver", DRIVERS_OF_INNODB + DRIVERS_OF_POSTGRESQL + DRIVERS_OF_SQLITE)
@in_event_loop
async def test_an_async_session_claims_and_frees_keys(engine: Engine, driver: str) -> None:
    with Session(engine) as session:
        add(session, Mail, 1, 1, 2)
    queue = AsyncJobQueue(BY_ACCOUNT)
    async_engine = make_async_engine(engine.url, driver)

    async with AsyncSession(async_engine) as session:
        jobs = await queue.claim(session, owner="w", limit=9)
        assert [job.account_id for job in jobs] == [1, 2]
        if driver != "aiosqlite":
            assert locked_keys(engine, BY_ACCOUNT) == 2
        await session.commit()

        assert locked_keys(engine, BY_ACCOUNT) == 0
        assert not await queue.claim(session, owner="w", limit=9)
        await session.rollback()
    await async_engine.dispose()


# Many processes


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_finish_each_key_in_the_order_of_its_jobs(
    engine: Engine, session: Session, limit: int, full: bool
) -> None:
    jobs, keys, consumers = (5_000, 50, 10) if full else (120, 12, 3)
    enqueue(session, Mail, [{"account_id": number * 7 % keys} for number in range(jobs)])
    session.commit()

    lines = run_consumers(engine, limit, consumers)

    finished = 0
    for account in range(keys):
        of_key = select(Mail.id).where(Mail.account_id == account).order_by(Mail.id)
        in_order = list(session.scalars(of_key))
        steps = [(line.job, line.is_claim) for line in lines if line.job in in_order]
        # Each claim is followed by its finish, so two are never claimed at once. A failed job
        # is claimed again before any other job of its key.
        assert [is_claim for _, is_claim in steps] == [True, False] * (len(steps) // 2)
        assert [job for job, _ in steps[::2]] == [job for job, _ in steps[1::2]]
        assert [job for job, _ in groupby(job for job, _ in steps)] == in_order
        finished += len(in_order)
    assert finished == jobs
    assert not full or len({line.process for line in lines}) > 1  # one may take all of a few jobs
    assert locked_keys(engine, BY_ACCOUNT) == 0
