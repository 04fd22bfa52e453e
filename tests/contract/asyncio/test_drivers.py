"""What each async driver does: claims beside each other, and connections that die."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue, advisory_session
from sa_jobqueue.events import Event, listen, remove
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    new_async_session,
)
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import cut_connections


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
async def test_a_claim_whose_connection_died_before_the_commit_is_no_claim(
    async_engine: AsyncEngine, session: Session, db_url: URL, db_alias: str
) -> None:
    add_tasks(session, "a")
    session.close()
    heard: list[Event] = []
    listen(Task, "after_claim", heard.append)
    try:
        async with new_async_session(async_engine) as own:
            assert await AsyncJobQueue(JobQueue(Task)).claim(own, owner="w")
            cut_connections(db_url, db_alias)

            with pytest.raises(DBAPIError):
                await own.commit()
    finally:
        remove(Task, "after_claim", heard.append)
    assert heard == []


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@in_event_loop
async def test_a_finish_by_advisory_locks_whose_connection_died_raises_at_its_commit(
    async_engine: AsyncEngine, session: Session, engine: Engine, db_url: URL, db_alias: str
) -> None:
    key = add_tasks(session, "a")[0].id
    session.close()
    queue = AsyncJobQueue(JobQueue(Task, strategy="advisory"))
    async with advisory_session(async_engine) as own:
        claimed = await queue.claim(own, limit=1)
        await own.commit()
        await queue.complete(own, claimed)
        cut_connections(db_url, db_alias)

        with pytest.raises(DBAPIError):
            await own.commit()
    engine.dispose()  # its connection was cut, too
    assert session.get_one(Task, key).status == "unclaimed"
