"""What a worker can be given as its engine, and whether that has enough connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool, QueuePool, StaticPool

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


def engine_of(open_session: Callable[[], Session], lanes: Sequence[Lane[Any]]) -> Engine:
    """Return the engine that a sessionmaker's sessions write the class of the first lane with.

    Raises:
        ArgumentError: it tells which sessions to give instead: these are bound to a connection or
            to nothing, or the worker cannot begin them in its own way.
    """
    mapping = lanes[0].mapping
    with open_session() as session:
        try:
            bind = session.get_bind(**routed_to_writes(mapping.mapper))
        except UnboundExecutionError as error:
            raise ArgumentError(
                f"this sessionmaker knows no engine for {mapping}: bind it to an Engine, as in "
                "sessionmaker(engine)"
            ) from error
        if not isinstance(bind, Engine):
            raise ArgumentError(
                "a worker needs several connections, and this sessionmaker is bound to one "
                "Connection: give a sessionmaker that is bound to an Engine"
            )
        if not session.autobegin:
            raise ArgumentError(
                "a worker's sessions begin their transactions by themselves: give it the Engine, "
                "or a sessionmaker without autobegin=False"
            )
        if session.twophase and any(part.transactional for lane in lanes for part in lane.parts):
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
    return bind


def may_be_bound(open_session: Callable[[], Session], connection: Connection, mapper: Any) -> bool:
    """Tell whether the application's sessions write a class with a connection that is their bind.

    Sessions with a bind for each class, or with a routing of their own, choose an engine instead.
    """
    with open_session() as session:
        session.bind = connection
        return session.get_bind(**routed_to_writes(mapper)) is connection


def check_connections(
    pool: Pool, concurrency: int, lanes: Sequence[Lane[Any]], *, alone: bool, keeps_timeouts: bool
) -> bool:
    """Refuse more handlers than connections; tell whether the worker may keep one beside theirs.

    Other pools than a QueuePool may give a connection that belongs to one thread.

    Args:
        alone: the worker uses one connection only, and calls its handlers one after the other.
        keeps_timeouts: the call of a handler ends at its timeout, so no other thread watches it.

    Raises:
        ArgumentError: it tells what to change.
    """
    if concurrency > 1 and (alone or isinstance(pool, StaticPool)):
        raise ArgumentError(
            "a database in memory has one connection, and concurrency= needs more: use a file, or "
            "a database server; a StaticPool gives all threads one connection: leave out poolclass="
        )
    if (
        alone
        and not keeps_timeouts
        and any(part.timeout is not None for lane in lanes for part in lane.parts)
    ):
        raise ArgumentError(
            "on a database in memory the worker has one thread, which calls the handlers and "
            "cannot notice their timeout=: use a file, or a database server"
        )
    most, needed = math.inf, concurrency + 2
    if isinstance(pool, StaticPool):
        most = 1
    elif isinstance(pool, QueuePool) and pool._max_overflow >= 0:
        most = pool.size() + pool._max_overflow
    if (
        not alone
        and most < needed
        and any(part.transactional for lane in lanes for part in lane.parts)
    ):
        raise ArgumentError(
            f"{concurrency} transactional handlers at once and the worker itself need up to "
            f"{needed} connections, and the engine's pool has {most}: give create_engine() a "
            "larger pool_size="
        )
    return isinstance(pool, QueuePool) and not alone and most >= needed
