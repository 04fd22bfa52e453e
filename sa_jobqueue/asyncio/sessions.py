"""An AsyncSession, and the Session behind it, which runs the verbs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from ..errors import ArgumentError
from ..sessions.writer import AnySession

AnyAsyncSession: TypeAlias = "AsyncSession | async_scoped_session[Any]"

P = ParamSpec("P")
R = TypeVar("R")


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
        "from sa_jobqueue, or from sa_jobqueue.control, and do not await it"
    )


def sync_session_of(session: AnyAsyncSession | None) -> Session | None:
    """Return the Session behind an AsyncSession; None for None."""
    return None if session is None else async_session_of(session).sync_session


def awaited(
    verb: Callable[Concatenate[AnySession, P], R],
) -> Callable[Concatenate[AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same verb for an AsyncSession."""

    @wraps(verb)
    async def run(session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await async_session_of(session).run_sync(verb, *args, **kwargs)

    return run
