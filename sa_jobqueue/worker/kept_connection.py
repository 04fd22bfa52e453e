"""The connection of a worker's turns, which stays checked out from one turn to the next.

A pool resets each connection that it gets back. With PyMySQL, asyncmy and aiosqlite, the reset is a
round trip for each turn; with other drivers, it is a tenth of a turn's Python. Turns that follow
each other closely therefore share a connection. An idle worker gives it back after about a second.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from ..dialects import database_of
from ..sessions.transactions import connect

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
