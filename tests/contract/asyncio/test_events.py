"""Async sessions tell of events as plain ones do: after their commit."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.events import Event, listen, remove
from tests.contract.asyncio.support import in_event_loop, new_async_session
from tests.models import Email, add_emails


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
