"""Whether an engine has as many connections as a worker may use at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool, StaticPool

from ..errors import ArgumentError
from .lanes import Lane


def check_connections(
    engine: Engine,
    concurrency: int,
    lanes: Sequence[Lane[Any]],
    *,
    alone: bool,
    keeps_timeouts: bool,
) -> None:
    """Refuse more handlers than connections.

    Args:
        alone: the worker uses one connection only, and calls its handlers one after the other.
        keeps_timeouts: the call of a handler ends at its timeout, so no other thread watches it.

    Raises:
        ArgumentError: it tells what to change.
    """
    if alone:
        if concurrency > 1:
            raise ArgumentError(
                "a database in memory has one connection, and concurrency= needs more: use a "
                "file, or a database server"
            )
        if not keeps_timeouts and any(lane.timeout is not None for lane in lanes):
            raise ArgumentError(
                "on a database in memory the worker has one thread, which calls the handlers and "
                "cannot notice their timeout=: use a file, or a database server"
            )
        return
    if concurrency > 1 and isinstance(engine.pool, StaticPool):
        raise ArgumentError(
            "a StaticPool gives all threads one connection, and concurrency= needs more: leave out "
            "poolclass="
        )
    most, needed = _most_connections(engine), concurrency + 2
    if most < needed and any(lane.transactional for lane in lanes):
        raise ArgumentError(
            f"{concurrency} transactional handlers at once and the worker itself need up to "
            f"{needed} connections, and the engine's pool has {most}: give create_engine() a "
            "larger pool_size="
        )


def has_one_to_keep(engine: Engine, concurrency: int) -> bool:
    """Tell whether a worker may keep a connection beside those of its handlers.

    Other pools than a QueuePool may give a connection that belongs to one thread.
    """
    return isinstance(engine.pool, QueuePool) and _most_connections(engine) >= concurrency + 2


def _most_connections(engine: Engine) -> float:
    """Return how many connections a pool gives at once, as far as it has a limit."""
    pool = engine.pool
    if isinstance(pool, StaticPool):
        return 1
    if not isinstance(pool, QueuePool) or pool._max_overflow < 0:
        return math.inf
    return pool.size() + pool._max_overflow
