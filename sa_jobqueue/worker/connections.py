"""What a worker does with an engine or a sessionmaker, and whether it can use it.

The connection of its turns stays checked out from one turn to the next. A pool resets each
connection that it gets back. With PyMySQL, asyncmy and aiosqlite, the reset is a round trip for
each turn; with other drivers, it is a tenth of a turn's Python. Turns that follow each other
closely therefore share a connection. An idle worker gives it back after about a second.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool, StaticPool

from ..dialects import database_of
from ..errors import ArgumentError
from ..sessions.transactions import connect, routed_to_writes
from .lanes import Lane

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")


#: For how long a connection is kept, in seconds. A pool that pings, recycles or prepares its
#: connections does so once in this time.
KEPT_FOR = 1.0

#: How long a transaction of the worker waits for a locked row where the server would wait without
#: a limit.
LOCK_WAIT = timedelta(seconds=2)


@dataclass(eq=False)
class _Kept:
    """A connection, and the session that the turns use on it if it is a plain one."""

    engine: Engine
    connection: Connection = field(init=False)
    plain: Session = field(init=False)
    since: float = field(default_factory=time.monotonic)
    # Through a pooler, its settings would be those of other clients, too. None: not asked yet.
    _is_shared: bool | None = None
    _is_settled: bool = False
    _is_limited: bool = False

    def __post_init__(self) -> None:
        self._pool = self.engine.pool
        self.connection = connect(self.engine)
        self.plain = Session(self.connection, expire_on_commit=False)

    @property
    def until(self) -> float:
        """When it goes back to the pool, by time.monotonic()."""
        return self.since + KEPT_FOR

    @property
    def is_good(self) -> bool:
        """Whether another turn may use it."""
        return self._is_of_engine and time.monotonic() < self.until

    def close(self) -> None:
        """Give it back to the pool, which resets it."""
        try:
            if not self._is_of_engine:  # nobody would close it any more
                self.connection.invalidate()
            if self._is_limited and not self.connection.invalidated:
                database_of(self.connection).lift_lock_wait_limit(self.connection)
                self.connection.commit()
        except BaseException as error:
            self.connection.invalidate()
            if not isinstance(error, Exception):
                raise
            log.info("a connection is closed, and not given back to its pool: %s", error)
        finally:
            self.connection.close()

    def limit_lock_wait(self, connection: Connection) -> None:
        """Limit the waits for locked rows in this transaction.

        Without a pooler, the limit stays for the transactions that follow.
        """
        database = database_of(connection)
        if self._is_settled or not database.may_wait_without_limit:
            return
        if self._is_shared is None:
            self._is_shared = database.through_pooler(connection)
        limited = database.limit_lock_wait(connection, LOCK_WAIT, of_session=not self._is_shared)
        self._is_settled = not self._is_shared
        self._is_limited = limited and self._is_settled

    @property
    def _is_of_engine(self) -> bool:
        """Whether the engine still has the connection's pool; dispose() replaces the pool."""
        return self.engine.pool is self._pool


class KeptConnection:
    """Run turns on a kept connection; as a chore, give the connection back in time.

    Turns run one after the other, in any thread. If no connection is kept, a turn connects.

    Args:
        open_session: opens a session of the application's kind for each turn, which
            :func:`may_be_bound` allows; None: the turns share a plain one.
    """

    def __init__(self, engine: Engine, open_session: Callable[[], Session] | None = None) -> None:
        self._engine = engine
        self._open_session = open_session
        self._free: list[_Kept] = []
        self._is_over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.let_go()

    def use(self, work: Callable[[Session, Callable[[Connection], None]], R]) -> R:
        """Call `work` with a session on the connection; keep the connection if it succeeds.

        Args:
            work: also gets a function that limits the waits for locked rows. It calls this
                function in its transaction, if it writes to rows that others may have locked.
        """
        kept = self._take()
        try:
            result = work(self._session_on(kept), kept.limit_lock_wait)
        except BaseException:
            kept.close()
            raise
        self._put_back(kept)
        return result

    def let_go(self) -> None:
        """Give the connection back to the pool."""
        while (kept := self._pop()) is not None:
            kept.close()

    @property
    def due_at(self) -> float:
        """When the connection is to be given back, by time.monotonic(); infinity: none is kept."""
        return min((kept.until for kept in tuple(self._free)), default=math.inf)

    def run(self) -> None:
        """Give the connection back, as a chore."""
        self.let_go()

    def _session_on(self, kept: _Kept) -> Session:
        if self._open_session is None:
            return kept.plain
        session = self._open_session()
        session.bind = kept.connection
        return session

    def _take(self) -> _Kept:
        kept = self._pop()
        if kept is not None:
            if kept.is_good:
                return kept
            kept.close()
        return _Kept(self._engine)

    def _put_back(self, kept: _Kept) -> None:
        self._free.append(kept)
        if self._is_over:  # the run has ended without us, as it does if a handler never ends
            self.let_go()

    def _pop(self) -> _Kept | None:
        try:
            return self._free.pop()
        except IndexError:
            return None


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
