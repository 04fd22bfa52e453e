"""Queues with serial keys: what is refused, shown, and claimed by workers and processes."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, UnsupportedDatabase, enqueue
from sa_jobqueue.asyncio import AsyncJobQueue
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
)
from tests.contract.serial.keyed import BY_ACCOUNT, Mail, Note, add, locked_keys, run_consumers

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
        ({"serial_by": Mail.account_id, "on_retry": "never"}, "is 'wait' or 'skip'"),
        ({"limit_by": {Mail.account_id: 2}, "on_retry": "skip"}, "without serial_by="),
        ({"serial_by": Note.account_id, "on_retry": "skip"}, "add RetryMixin"),
        ({"serial_by": Mail.account_id, "strategy": "held"}, "leave strategy='held' out"),
        ({"serial_by": Mail.account_id, "strict_order": True}, "leave strict_order=True out"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(options: dict[str, Any], words: str) -> None:
    entity = Note if "RetryMixin" in words else Mail
    with pytest.raises(ArgumentError, match=words):
        JobQueue(entity, **options)


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


# Its face


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
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_finish_each_key_in_the_order_of_its_jobs(
    engine: Engine, session: Session, limit: int, full: bool
) -> None:
    jobs, keys, consumers = (5_000, 50, 10) if full else (120, 12, 3)
    enqueue(session, Mail, [{"account_id": number * 7 % keys} for number in range(jobs)])
    session.commit()

    lines = run_consumers(engine, 1, limit, consumers)

    by_key = sorted(lines, key=lambda line: line.account_id)
    finished = 0
    for account, of_account in groupby(by_key, lambda line: line.account_id):
        steps = [(line.job, line.finished) for line in of_account]
        of_key = select(Mail.id).where(Mail.account_id == account).order_by(Mail.id)
        in_order = list(session.scalars(of_key))
        # Each claim is followed by its finish, so two are never claimed at once. A failed job
        # is claimed again before any other job of its key.
        assert [done for _, done in steps] == [False, True] * (len(steps) // 2)
        assert [job for job, _ in steps[::2]] == [job for job, _ in steps[1::2]]
        assert [job for job, _ in groupby(job for job, _ in steps)] == in_order
        finished += len(in_order)
    assert finished == jobs
    assert not full or len({line.process for line in lines}) > 1  # one may take all of a few jobs
    assert locked_keys(engine, BY_ACCOUNT) == 0
