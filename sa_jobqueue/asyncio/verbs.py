"""The verbs of :mod:`sa_jobqueue`, to be awaited, with an AsyncSession first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from .. import changing, claiming, enqueueing, finishing, owners, reaping, stats
from ..advisory import make_fit
from ..fencing import Claim
from ..owners import Owner
from ..sessions import AnySession
from ..strategies import AUTO
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
        claiming.claim,
        entity,
        *where,
        owner=owner,
        limit=limit,
        order_by=order_by,
        candidates_from=sync_session_of(candidates_from),
        strategy=strategy,
        options=options,
    )


cancel = _awaited(changing.cancel)
claimed_by = _awaited(claiming.claimed_by)
complete = _awaited(finishing.complete)
connection_owner = _awaited(owners.connection_owner)
count_by_status = _awaited(stats.count_by_status)
enqueue = _awaited(enqueueing.enqueue)
fail = _awaited(finishing.fail)
give_up = _awaited(finishing.give_up)
owner_state = _awaited(owners.owner_state)
prune = _awaited(changing.prune)
queue_stats = _awaited(stats.queue_stats)
reap = _awaited(reaping.reap)
release = _awaited(finishing.release)
renew = _awaited(finishing.renew)
reprioritize = _awaited(changing.reprioritize)
retry = _awaited(changing.retry)


@asynccontextmanager
async def advisory_session(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session on one connection; see :func:`sa_jobqueue.advisory_session`."""
    options.setdefault("expire_on_commit", False)
    async with engine.connect() as connection:
        await connection.run_sync(make_fit)
        async with AsyncSession(connection, **options) as session:
            yield session
