"""The verbs, awaited: as functions with an AsyncSession first, and as methods of AsyncJobQueue.

Each runs the verb of :mod:`sa_jobqueue` by ``AsyncSession.run_sync``. Those whose types a wrapper
cannot carry, overloads and a second session, are written out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from sqlalchemy import ColumnElement, Row
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from ..fence.claim import Claim
from ..owners import alive as alive_
from ..owners import owner as owner_
from ..owners.owner import Owner
from ..queue import JobQueue
from ..queue_position import position as position_
from ..rounds import progress as progress_
from ..rounds import start as start_
from ..sessions.writer import AnySession
from ..strategies import AUTO
from ..strategies.advisory_session import prepare_connection
from ..verbs import claim as claim_
from ..verbs import enqueue as enqueue_
from ..verbs import finish, manage
from ..verbs import reap as reap_
from ..verbs import stats as stats_
from .sessions import AnyAsyncSession, async_session_of, awaited, sync_session_of

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
    "finish_rate",
    "owner_state",
    "position",
    "positions",
    "prune",
    "reap",
    "release",
    "renew",
    "reprioritize",
    "retry",
    "round_progress",
    "start_round",
    "stats",
    "waiting_time",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


async def claim(
    session: AnyAsyncSession,
    entity: type[T],
    *where: ColumnElement[bool],
    owner: str | int | Owner | None = None,
    limit: int = 1,
    order_by: Any = (),
    candidates_from: AnyAsyncSession | None = None,
    strategy: str = AUTO,
    options: Sequence[Any] = (),
) -> Claim[T]:
    """Claim up to `limit` jobs in the caller's transaction; see :func:`sa_jobqueue.claim`."""
    return await async_session_of(session).run_sync(
        claim_.claim,
        entity,
        *where,
        owner=owner,
        limit=limit,
        order_by=order_by,
        candidates_from=sync_session_of(candidates_from),
        strategy=strategy,
        options=options,
    )


@overload
async def enqueue(
    session: AnyAsyncSession,
    entity: type[Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    priority: int | None = None,
    run_at: datetime | None = None,
    skip_duplicates: Literal[False] = False,
) -> int: ...
@overload
async def enqueue(
    session: AnyAsyncSession,
    entity: type[Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    priority: int | None = None,
    run_at: datetime | None = None,
    skip_duplicates: bool,
) -> int | None: ...
async def enqueue(
    session: AnyAsyncSession,
    entity: type[Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    priority: int | None = None,
    run_at: datetime | None = None,
    skip_duplicates: bool = False,
) -> int | None:
    """Insert unclaimed jobs in the caller's transaction; see :func:`sa_jobqueue.enqueue`."""
    return await async_session_of(session).run_sync(
        enqueue_.enqueue,
        entity,
        rows,
        priority=priority,
        run_at=run_at,
        skip_duplicates=skip_duplicates,
    )


cancel = awaited(manage.cancel)
cancel_claimed = awaited(finish.cancel_claimed)
claimed_by = awaited(claim_.claimed_by)
complete = awaited(finish.complete)
connection_owner = awaited(owner_.connection_owner)
count_by_status = awaited(stats_.count_by_status)
fail = awaited(finish.fail)
finish_rate = awaited(position_.finish_rate)
owner_state = awaited(alive_.owner_state)
position = awaited(position_.position)
positions = awaited(position_.positions)
prune = awaited(manage.prune)
reap = awaited(reap_.reap)
release = awaited(finish.release)
renew = awaited(finish.renew)
reprioritize = awaited(manage.reprioritize)
retry = awaited(manage.retry)
round_progress = awaited(progress_.round_progress)
start_round = awaited(start_.start_round)
stats = awaited(stats_.stats)
waiting_time = awaited(position_.waiting_time)


@asynccontextmanager
async def advisory_session(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session on one connection; see :func:`sa_jobqueue.advisory_session`."""
    options.setdefault("expire_on_commit", False)
    async with engine.connect() as connection:
        await connection.run_sync(prepare_connection)
        async with AsyncSession(connection, **options) as session:
            yield session


def _awaited_method(
    verb: Callable[Concatenate[JobQueue[Any], AnySession, P], R],
) -> Callable[Concatenate[AsyncJobQueue[Any], AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same method for an AsyncSession."""

    @wraps(verb)
    async def run(
        self: AsyncJobQueue[Any], session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        # By name: the queue may be that of a workflow's step, whose verbs are its own.
        bound: Callable[Concatenate[AnySession, P], R] = getattr(self.sync_queue, verb.__name__)
        return await async_session_of(session).run_sync(bound, *args, **kwargs)

    return run


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

    @overload
    async def enqueue(
        self,
        session: AnyAsyncSession,
        rows: Iterable[Mapping[str, Any]],
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        skip_duplicates: Literal[False] = False,
    ) -> int: ...
    @overload
    async def enqueue(
        self,
        session: AnyAsyncSession,
        rows: Iterable[Mapping[str, Any]],
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        skip_duplicates: bool,
    ) -> int | None: ...
    async def enqueue(
        self,
        session: AnyAsyncSession,
        rows: Iterable[Mapping[str, Any]],
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        skip_duplicates: bool = False,
    ) -> int | None:
        """Insert jobs of this queue; see :meth:`sa_jobqueue.JobQueue.enqueue`."""
        return await async_session_of(session).run_sync(
            self.sync_queue.enqueue,
            rows,
            priority=priority,
            run_at=run_at,
            skip_duplicates=skip_duplicates,
        )

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

    async def cancel(self, session: AnyAsyncSession, jobs: Any) -> list[T]:
        """Cancel unclaimed jobs; see :meth:`sa_jobqueue.JobQueue.cancel`."""
        return await async_session_of(session).run_sync(self.sync_queue.cancel, jobs)

    async def retry(self, session: AnyAsyncSession, jobs: Any) -> list[T]:
        """Make finished jobs claimable again; see :meth:`sa_jobqueue.JobQueue.retry`."""
        return await async_session_of(session).run_sync(self.sync_queue.retry, jobs)

    async def reprioritize(self, session: AnyAsyncSession, jobs: Any, priority: int) -> list[T]:
        """Change priorities; see :meth:`sa_jobqueue.JobQueue.reprioritize`."""
        return await async_session_of(session).run_sync(
            self.sync_queue.reprioritize, jobs, priority
        )

    cancel_claimed = _awaited_method(JobQueue[Any].cancel_claimed)
    complete = _awaited_method(JobQueue[Any].complete)
    count_by_status = _awaited_method(JobQueue[Any].count_by_status)
    fail = _awaited_method(JobQueue[Any].fail)
    finish_rate = _awaited_method(JobQueue[Any].finish_rate)
    position = _awaited_method(JobQueue[Any].position)
    positions = _awaited_method(JobQueue[Any].positions)
    prune = _awaited_method(JobQueue[Any].prune)
    reap = _awaited_method(JobQueue[Any].reap)
    release = _awaited_method(JobQueue[Any].release)
    renew = _awaited_method(JobQueue[Any].renew)
    stats = _awaited_method(JobQueue[Any].stats)
    turn = _awaited_method(JobQueue[Any].turn)
    waiting_time = _awaited_method(JobQueue[Any].waiting_time)
