"""A JobQueue whose verbs are awaited.

It wraps the JobQueue, as an AsyncEngine wraps an Engine, and has no arguments of
its own: what is claimed and how is said once, for the service that awaits and for
the command line that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Row

from ..fence.claim import Claim
from ..owners.owner import Owner
from ..queue import JobQueue
from ..sessions.writer import AnySession
from .sessions import AnyAsyncSession, async_session_of, sync_session_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[JobQueue[Any], AnySession, P], R],
) -> Callable[Concatenate[AsyncJobQueue[Any], AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same method for an AsyncSession."""

    @wraps(verb)
    async def run(
        self: AsyncJobQueue[Any], session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        bound: Callable[Concatenate[AnySession, P], R] = getattr(self.sync_queue, verb.__name__)
        return await async_session_of(session).run_sync(bound, *args, **kwargs)

    return run


class AsyncJobQueue(Generic[T]):
    """A JobQueue for an AsyncSession.

    Args:
        queue: a JobQueue, also one that is in use elsewhere.

    Attributes:
        sync_queue: the same.
    """

    def __init__(self, queue: JobQueue[T]) -> None:
        self.sync_queue = queue

    def __repr__(self) -> str:
        return f"<AsyncJobQueue of {self.sync_queue!r}>"

    async def claim(
        self,
        session: AnyAsyncSession,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnyAsyncSession | None = None,
        options: Sequence[Any] = (),
    ) -> Claim[T]:
        """Claim up to `limit` jobs; see :func:`sa_jobqueue.claim`."""
        return await async_session_of(session).run_sync(
            self.sync_queue.claim,
            owner=owner,
            limit=limit,
            candidates_from=sync_session_of(candidates_from),
            options=options,
        )

    async def claim_rows(
        self,
        session: AnyAsyncSession,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        candidates_from: AnyAsyncSession | None = None,
    ) -> Claim[Row[Any]]:
        """Claim plain rows; see :meth:`sa_jobqueue.JobQueue.claim_rows`."""
        return await async_session_of(session).run_sync(
            self.sync_queue.claim_rows,
            owner=owner,
            limit=limit,
            candidates_from=sync_session_of(candidates_from),
        )

    async def claimed_by(self, session: AnyAsyncSession, owner: str | int | Owner) -> Claim[T]:
        """Return an owner's claims of this queue; see :func:`sa_jobqueue.claimed_by`."""
        return await async_session_of(session).run_sync(self.sync_queue.claimed_by, owner)

    complete = _awaited(JobQueue[Any].complete)
    fail = _awaited(JobQueue[Any].fail)
    finish_rate = _awaited(JobQueue[Any].finish_rate)
    cancel_claimed = _awaited(JobQueue[Any].cancel_claimed)
    position = _awaited(JobQueue[Any].position)
    positions = _awaited(JobQueue[Any].positions)
    reap = _awaited(JobQueue[Any].reap)
    release = _awaited(JobQueue[Any].release)
    renew = _awaited(JobQueue[Any].renew)
    turn = _awaited(JobQueue[Any].turn)
    waiting_time = _awaited(JobQueue[Any].waiting_time)
