"""The verbs of :mod:`sa_jobqueue`, to be awaited, with an AsyncSession first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from ..fence.claim import Claim
from ..owners import owner
from ..owners.owner import Owner
from ..queue_position import position as position_
from ..rounds import rounds as rounds_
from ..sessions.writer import AnySession
from ..strategies import AUTO
from ..strategies.advisory_session import make_fit
from ..verbs import claim as claim_
from ..verbs import enqueue as enqueue_
from ..verbs import finish, manage, stats
from ..verbs import reap as reap_
from .sessions import AnyAsyncSession, async_session_of, sync_session_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[AnySession, P], R],
) -> Callable[Concatenate[AnyAsyncSession, P], Coroutine[Any, Any, R]]:
    """Make the same verb for an AsyncSession."""

    @wraps(verb)
    async def run(session: AnyAsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await async_session_of(session).run_sync(verb, *args, **kwargs)

    return run


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


cancel = _awaited(manage.cancel)
claimed_by = _awaited(claim_.claimed_by)
complete = _awaited(finish.complete)
connection_owner = _awaited(owner.connection_owner)
count_by_status = _awaited(stats.count_by_status)
fail = _awaited(finish.fail)
finish_rate = _awaited(position_.finish_rate)
cancel_claimed = _awaited(finish.cancel_claimed)
owner_state = _awaited(owner.owner_state)
position = _awaited(position_.position)
positions = _awaited(position_.positions)
prune = _awaited(manage.prune)
queue_stats = _awaited(stats.queue_stats)
reap = _awaited(reap_.reap)
release = _awaited(finish.release)
renew = _awaited(finish.renew)
reprioritize = _awaited(manage.reprioritize)
retry = _awaited(manage.retry)
waiting_time = _awaited(position_.waiting_time)
round_progress = _awaited(rounds_.round_progress)
start_round = _awaited(rounds_.start_round)


@asynccontextmanager
async def advisory_session(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session on one connection; see :func:`sa_jobqueue.advisory_session`."""
    options.setdefault("expire_on_commit", False)
    async with engine.connect() as connection:
        await connection.run_sync(make_fit)
        async with AsyncSession(connection, **options) as session:
            yield session
