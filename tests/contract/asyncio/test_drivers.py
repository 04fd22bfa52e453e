"""What each async driver does: claims beside each other, and transactions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Connection, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue, claim, complete
from sa_jobqueue.dialects import database_of
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.models import Email, add_emails, recipients


@pytest.mark.strategies("skip_locked", "candidates", "update_then_select", "held")
@in_event_loop
async def test_a_claim_passes_over_what_another_task_has_locked(
    async_engine: AsyncEngine, session: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email, strategy=strategy))
    async with new_async_session(async_engine) as one, new_async_session(async_engine) as two:
        first = await queue.claim(one, owner="one", limit=2)
        if strategy == "update_then_select":  # other connections would wait for its locks
            await one.commit()

        second = await queue.claim(two, owner="two", limit=4)

        assert recipients(first) == ["a", "b"]
        assert recipients(second) == ["c", "d"]
        await two.rollback()
        await queue.complete(one, first)
        await one.commit()
    assert session.scalars(select(Email.status).order_by(Email.id)).all()[:2] == ["done", "done"]


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_candidates_are_drawn_from_another_session(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    queue = AsyncJobQueue(JobQueue(Email, strategy="candidates"))
    one_more: Any = partial(claim, entity=Email, strategy="candidates")
    claimed: list[list[str]] = []
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as replica:
        for take in (queue.claim, queue.claim_rows, one_more):
            jobs = await take(own, owner="w", limit=2, candidates_from=replica.sync_session)
            claimed.append(sorted(recipients(jobs)))
            assert replica.in_transaction()
            await replica.rollback()
        await own.commit()

    assert claimed == [["a", "b"], ["c", "d"], ["e", "f"]]


@in_event_loop
async def test_strict_order_has_one_claimer_at_a_time(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email, strict_order=True))
    order: list[str] = []

    async def consume(name: str, claimed: asyncio.Event, go: asyncio.Event) -> None:
        async with new_async_session(async_engine) as own:
            emails = await queue.claim(own, owner=name, limit=2)
            order.extend(recipients(emails))
            claimed.set()
            await go.wait()
            await own.commit()

    first, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    one = asyncio.create_task(consume("one", first, go))
    await asyncio.wait_for(first.wait(), 10)
    two = asyncio.create_task(consume("two", second, go))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.wait(), 0.3)
    go.set()
    await asyncio.wait_for(asyncio.gather(one, two), 10)

    assert order == list("abcd")


# What the drivers tell


@in_event_loop
async def test_autocommit_is_known_without_asking_the_server(
    async_engine: AsyncEngine, db_url: URL, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(connection: Connection) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(connection.dialect, "get_isolation_level", refuse)
            return database_of(connection).in_autocommit(connection)

    def refuse(*_: object) -> None:
        raise AssertionError("the server is asked")

    committing = make_async_engine(db_url, driver, isolation_level="AUTOCOMMIT")
    async with async_engine.connect() as one, committing.connect() as two:
        told = [await one.run_sync(ask), await two.run_sync(ask)]
    await committing.dispose()

    assert told == [False, True]


@in_event_loop
async def test_two_claimers_in_autocommit_never_share_a_row(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    engine = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with new_async_session(engine) as one, new_async_session(engine) as two:
        first = await claim(one, Email, owner="one", limit=3)
        second = await claim(two, Email, owner="two", limit=6)
        await complete(one, first)

    assert recipients(first) == ["a", "b", "c"]
    assert recipients(second) == ["d", "e", "f"]


@pytest.mark.parametrize("driver", DRIVERS_OF_INNODB)
@in_event_loop
async def test_a_claim_begins_its_transaction_as_read_committed(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own:
        await claim(own, Email, owner="w")

        seen = await own.run_sync(
            lambda sync: database_of(sync.connection()).begin(sync.connection())
        )

    assert seen is False  # the call is told that a transaction is open


@in_event_loop
async def test_a_connection_knows_its_backend(async_engine: AsyncEngine, db_alias: str) -> None:
    def ask(connection: Any) -> tuple[int | None, int | None]:
        database = database_of(connection)
        return database.told_backend(connection), database.backend(connection)

    async with async_engine.connect() as connection:
        told, backend = await connection.run_sync(ask)

    assert told == backend
    assert (told is None) == (db_alias == "sqlite")
