"""What a worker can be given as its engine, and whether that has enough connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool, StaticPool

from ..errors import ArgumentError
from ..sessions.transactions import routed_to_writes
from .lanes import Lane


def what_to_give(given: Any, prefix: str = "") -> str | None:
    """Say what to give a worker instead of this object, which it cannot use.

    Args:
        prefix: "async_" for asyncio, otherwise empty.
    """
    if isinstance(given, str | URL):
        return f"make an engine of it with create_{prefix}engine()"
    if hasattr(given, "session_factory"):  # a scoped_session
        return "a worker opens its own sessions; give its session_factory"
    if isinstance(given, type):
        return f"make a factory of it with {prefix}sessionmaker(engine, class_=..)"
    if hasattr(given, "get_bind") or hasattr(given, "in_transaction"):  # a session, a connection
        return "a worker opens several sessions; give its engine, or the sessionmaker"
    return None


def engine_of(open_session: Callable[[], Session], mapper: Any) -> Engine:
    """Return the engine that a sessionmaker's sessions write a class with.

    Raises:
        ArgumentError: the sessions are bound to a connection, or to nothing.
    """
    with open_session() as session:
        try:
            bind = session.get_bind(**routed_to_writes(mapper))
        except UnboundExecutionError as error:
            raise ArgumentError(
                f"this sessionmaker knows no engine for {mapper.class_.__name__}: bind it to an "
                "Engine, as in sessionmaker(engine)"
            ) from error
    if not isinstance(bind, Engine):
        raise ArgumentError(
            "a worker needs several connections, and this sessionmaker is bound to one Connection: "
            "give a sessionmaker that is bound to an Engine"
        )
    return bind


def may_be_bound(open_session: Callable[[], Session], connection: Connection, mapper: Any) -> bool:
    """Tell whether the application's sessions write a class with a connection that is their bind.

    Sessions with a bind for each class, or with a routing of their own, choose an engine instead.
    """
    with open_session() as session:
        session.bind = connection
        return session.get_bind(**routed_to_writes(mapper)) is connection


def check_sessions(open_session: Callable[[], Session], lanes: Sequence[Lane[Any]]) -> None:
    """Refuse sessions that the worker cannot begin or commit in its own way.

    Raises:
        ArgumentError: it tells which sessions to give instead.
    """
    with open_session() as session:
        if not session.autobegin:
            raise ArgumentError(
                "a worker's sessions begin their transactions by themselves: give it the Engine, "
                "or a sessionmaker without autobegin=False"
            )
        if session.twophase and any(lane.transactional for lane in lanes):
            raise ArgumentError(
                "transactional handlers need sessions that commit in one phase: give the worker a "
                "sessionmaker without twophase=True"
            )
        try:
            session.commit()  # it writes nothing, but listeners may refuse it
        except Exception as error:
            raise ArgumentError(
                "a worker commits its sessions itself, and a listener of this sessionmaker refuses "
                f"that ({error}): give the Engine, or a sessionmaker without the listener"
            ) from error


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
