"""An AsyncSession, and the Session behind it, which runs the verbs."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from ..errors import ArgumentError

AnyAsyncSession: TypeAlias = "AsyncSession | async_scoped_session[Any]"


def async_session_of(session: AnyAsyncSession) -> AsyncSession:
    """Return the AsyncSession itself, also of an async_scoped_session.

    Raises:
        ArgumentError: a synchronous session, or no session.
    """
    if isinstance(session, async_scoped_session):
        found: AsyncSession = session()
        return found
    if isinstance(session, AsyncSession):
        return session
    raise ArgumentError(
        f"an AsyncSession is needed, not {type(session).__name__}; for a Session import the verb "
        "from sa_jobqueue, and do not await it"
    )


def sync_session_of(session: AnyAsyncSession | None) -> Session | None:
    """Return the Session behind an AsyncSession; None for None."""
    return None if session is None else async_session_of(session).sync_session
