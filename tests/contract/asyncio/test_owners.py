"""Owners, advisory locks and rounds with an AsyncSession."""

from __future__ import annotations

import asyncio
import gc
import os
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, Owner, OwnerState, named_lock
from sa_jobqueue.asyncio import (
    advisory_session,
    claim,
    complete,
    connection_owner,
    owner_state,
)
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    ids,
    kept,
    mark,
)
from tests.models import Email, add_emails
from tests.support import cut_connections, until

# Owners


@pytest.mark.parametrize("awaited", [True, False])
@in_event_loop
async def test_an_owner_of_either_kind_of_engine_claims(
    async_engine: AsyncEngine, engine: Engine, session: Session, awaited: bool
) -> None:
    add_emails(session, "a")
    owner = Owner(async_engine if awaited else engine)
    await asyncio.to_thread(owner.open)
    async with new_async_session(async_engine) as own:
        (email,) = await claim(own, Email, owner=owner)
        await own.commit()
        alive = await owner_state(own, str(email.owner))
        await asyncio.to_thread(owner.close)
        dead = await owner_state(own, str(email.owner))

    assert (alive, dead) == (OwnerState.ALIVE, OwnerState.DEAD)


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_an_owner_notices_that_its_connection_was_cut_while_the_event_loop_is_busy(
    fresh_database: URL, driver: str, db_alias: str
) -> None:
    with Owner(make_async_engine(fresh_database, driver)) as owner:
        before = owner.name
        cut_connections(fresh_database, db_alias)

        def is_lost() -> bool:
            try:
                return owner.name != before
            except LockLost as error:
                return before in str(error)

        until(is_lost, 10)  # which lets no task of the loop run

        assert owner.name != before


@in_event_loop
async def test_a_named_lock_of_an_async_engine_has_one_holder(
    async_engine: AsyncEngine, engine: Engine
) -> None:
    lock = named_lock(async_engine, "async")

    assert await asyncio.to_thread(lock.acquire)
    assert not named_lock(engine, "async").acquire(timedelta(0))
    assert lock.holder() is not None
    await asyncio.to_thread(lock.release)
    assert named_lock(engine, "async").holder() is None


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_connection_is_an_owner(async_engine: AsyncEngine, session: Session) -> None:
    add_emails(session, "a")
    async with async_engine.connect() as connection, AsyncSession(connection) as own:
        name = await connection_owner(own)
        (email,) = await claim(own, Email, owner=name)

        assert email.owner == name
        assert await owner_state(own, name) is OwnerState.ALIVE


@pytest.fixture
def mailing(engine: Engine) -> Any:
    SubscriptionBase.metadata.drop_all(engine)  # other tests may have left rows
    SubscriptionBase.metadata.create_all(engine)
    with Session(engine) as session:
        add_subscriptions(session, 5)
    yield engine
    SubscriptionBase.metadata.drop_all(engine)


async def claim_subscriptions(session: AsyncSession, **options: Any) -> Any:
    options = {"limit": 2, "order_by": Subscription.id, **options}
    return await claim(session, Subscription, NOT_MAILED, strategy="advisory", **options)


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_lock_that_cannot_connect_leaves_no_event_loop_open(
    db_url: URL, driver: str
) -> None:
    engine = make_async_engine(db_url.set(host="127.0.0.1", port=1), driver).sync_engine
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises((OSError, DBAPIError)) as raised:  # which keeps what was made
        Owner(engine).open()

    assert len(os.listdir("/proc/self/fd")) == before, raised


# Advisory locks


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@in_event_loop
async def test_advisory_claims_are_freed_by_the_commit_of_their_finish(
    async_engine: AsyncEngine, mailing: Engine
) -> None:
    async with advisory_session(async_engine) as one, advisory_session(async_engine) as two:
        first = await claim_subscriptions(one)
        second = await claim_subscriptions(two)
        assert (ids(first), ids(second), kept(mailing)) == ([1, 2], [3, 4], 4)

        mark(first)
        await complete(one, first)
        before = kept(mailing)
        await one.commit()

        assert (before, kept(mailing)) == (4, 2)
        assert ids(await claim_subscriptions(one, limit=5)) == [5]
    assert kept(mailing) == 0
