"""The verbs, awaited: as functions with an AsyncSession first, and as methods of AsyncJobQueue.

Each runs the verb of :mod:`sa_jobqueue` by ``AsyncSession.run_sync``, which also awaits what has no
form here: ``await session.run_sync(workflow.signal, video, "rendered")``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from .. import rounds
from ..counts import position as position_
from ..counts import stats as stats_
from ..errors import ArgumentError
from ..owners import alive, owner
from ..queue import JobQueue
from ..strategies.advisory import prepare_connection
from ..verbs import claim as claim_
from ..verbs import enqueue as enqueue_
from ..verbs import finish, manage
from ..verbs import reap as reap_

__all__ = [
    "AsyncJobQueue",
    "advisory_session",
    "cancel",
    "cancel_claimed",
    "claim",
    "claimed_by",
    "complete",
    "connection_owner",
    "count_by_status",
    "enqueue",
    "fail",
    "owner_state",
    "position",
    "prune",
    "reap",
    "release",
    "renew",
    "reprioritize",
    "retry",
    "round_progress",
    "start_round",
    "stats",
]

AnyAsyncSession: TypeAlias = "AsyncSession | async_scoped_session[Any]"

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def awaited(
    verb: Callable[Concatenate[Session, P], R],
) -> Callable[Concatenate[AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same verb for an AsyncSession."""

    @wraps(verb)
    async def run(session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await async_session_of(session).run_sync(verb, *args, **kwargs)

    return run


def _awaited_method(
    method: Callable[Concatenate[JobQueue[T], Session, P], R],
) -> Callable[Concatenate[AsyncJobQueue[T], AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same method for an AsyncSession."""

    @wraps(method)
    async def run(
        self: AsyncJobQueue[T], session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        # By name: the queue may be that of a workflow's step, whose verbs are its own.
        bound: Callable[Concatenate[Session, P], R] = getattr(self.sync_queue, method.__name__)
        return await async_session_of(session).run_sync(bound, *args, **kwargs)

    return run


def async_session_of(session: AnyAsyncSession) -> AsyncSession:
    """Return the AsyncSession itself, also of an async_scoped_session.

    Raises:
        ArgumentError: a synchronous session, or no session.
    """
    found: Any = session() if isinstance(session, async_scoped_session) else session
    if isinstance(found, AsyncSession):
        return found
    raise ArgumentError(
        f"an AsyncSession is needed, not {type(session).__name__}; for a Session import the verb "
        "from sa_jobqueue, or use the JobQueue itself, and do not await it"
    )


cancel = awaited(manage.cancel)
cancel_claimed = awaited(finish.cancel_claimed)
claim = awaited(claim_.claim)
claimed_by = awaited(claim_.claimed_by)
complete = awaited(finish.complete)
connection_owner = awaited(owner.connection_owner)
count_by_status = awaited(stats_.count_by_status)
enqueue = awaited(enqueue_.enqueue)
fail = awaited(finish.fail)
owner_state = awaited(alive.owner_state)
position = awaited(position_.position)
prune = awaited(manage.prune)
reap = awaited(reap_.reap)
release = awaited(finish.release)
renew = awaited(finish.renew)
reprioritize = awaited(manage.reprioritize)
retry = awaited(manage.retry)
round_progress = awaited(rounds.round_progress)
start_round = awaited(rounds.start_round)
stats = awaited(stats_.stats)


@asynccontextmanager
async def advisory_session(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session on one connection; see :func:`sa_jobqueue.advisory_session`."""
    options.setdefault("expire_on_commit", False)
    async with engine.connect() as connection:
        await connection.run_sync(prepare_connection)
        async with AsyncSession(connection, **options) as session:
            yield session


class AsyncJobQueue(Generic[T]):
    """A JobQueue for an AsyncSession.

    It wraps the JobQueue, as an AsyncEngine wraps an Engine. It has no arguments of its own: the
    JobQueue states what is claimed and how, for coroutines and for the command line.

    Args:
        queue: a JobQueue, also one that is in use elsewhere.

    Attributes:
        sync_queue: the JobQueue.
    """

    def __init__(self, queue: JobQueue[T]) -> None:
        self.sync_queue = queue

    def __repr__(self) -> str:
        return f"<AsyncJobQueue of {self.sync_queue!r}>"

    @property
    def handler(self) -> Any:
        """Declare who handles its jobs; see :meth:`sa_jobqueue.JobQueue.handler`."""
        return self.sync_queue.handler

    @property
    def every(self) -> Any:
        """Declare a schedule of it; see :meth:`sa_jobqueue.JobQueue.every`."""
        return self.sync_queue.every

    cancel = _awaited_method(JobQueue[T].cancel)
    cancel_claimed = _awaited_method(JobQueue[T].cancel_claimed)
    claim = _awaited_method(JobQueue[T].claim)
    claim_rows = _awaited_method(JobQueue[T].claim_rows)
    claimed_by = _awaited_method(JobQueue[T].claimed_by)
    complete = _awaited_method(JobQueue[T].complete)
    count_by_status = _awaited_method(JobQueue[T].count_by_status)
    enqueue = _awaited_method(JobQueue[T].enqueue)
    fail = _awaited_method(JobQueue[T].fail)
    position = _awaited_method(JobQueue[T].position)
    prune = _awaited_method(JobQueue[T].prune)
    reap = _awaited_method(JobQueue[T].reap)
    release = _awaited_method(JobQueue[T].release)
    renew = _awaited_method(JobQueue[T].renew)
    reprioritize = _awaited_method(JobQueue[T].reprioritize)
    retry = _awaited_method(JobQueue[T].retry)
    stats = _awaited_method(JobQueue[T].stats)
    turn = _awaited_method(JobQueue[T].turn)
