"""wait(), awaited."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from ..waiting import Waiting, check_sessions

T = TypeVar("T")


async def wait(
    sessions: AsyncEngine | async_sessionmaker[Any], job: T, *, timeout: timedelta
) -> T | None:
    """Wait until a job has ended; see :func:`sa_jobqueue.wait`.

    Args:
        sessions: an AsyncEngine, or the application's async_sessionmaker.
        job, timeout: as for :func:`sa_jobqueue.wait`.
    """
    waiting = Waiting(job, timeout)
    check_sessions(sessions, AsyncEngine, async_sessionmaker)
    for pause in waiting.pauses():
        await asyncio.sleep(pause)
        opened = AsyncSession(sessions) if isinstance(sessions, AsyncEngine) else sessions()
        async with opened as session:
            found: T | None = (await session.execute(waiting.look)).scalars().unique().one_or_none()
            session.expunge_all()
        if waiting.has_ended(found):
            return found
    raise waiting.timed_out()
