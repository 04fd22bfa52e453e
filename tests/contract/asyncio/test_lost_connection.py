"""A COMMIT on a connection that has died raises, with a listener and an async driver too."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, Engine
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
from tests.models import Task, add_tasks
from tests.support import cut_connections


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
