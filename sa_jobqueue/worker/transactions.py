"""A worker's transactions, which are run again after a temporary error.

The connection of the turns stays checked out from one turn to the next. A pool resets each
connection that it gets back. With PyMySQL, asyncmy and aiosqlite, the reset is a round trip for
each turn; with other drivers, it is a tenth of a turn's Python. An idle worker gives its connection
back after about a second.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from ..dialects import database_of, is_of_driver, is_refused_login, is_shortage, is_transient
from ..errors import LockLost
from ..process import Flag, Runtime
from ..sessions.transactions import connect, run_in_transaction
from .connections import may_be_bound

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: For how long a transaction is run again before its error is raised: long enough for a restart
#: of the server.
PATIENCE = timedelta(minutes=5)

#: How long a transaction of the worker waits for a locked row where the server would wait without
#: a limit.
LOCK_WAIT = timedelta(seconds=2)

#: For how long a connection is kept, in seconds. A pool that pings, recycles or prepares its
#: connections does so once in this time.
KEPT_FOR = 1.0


class Stopped(BaseException):
    """The worker is to stop while it waits for its database.

    It ends the run as a KeyboardInterrupt does, but no error is raised, and handled jobs are
    finished.
    """


def pauses(first: float = 0.05, longest: float = 2.0, *, spread: float = 0.5) -> Iterator[float]:
    """Yield growing pauses between tries, in seconds: each is twice as long as the one before.

    Args:
        spread: each pause is shorter by up to this part.
    """
    while True:
        yield first * random.uniform(1 - spread, 1.0)
        first = min(first * 2, longest)


@dataclass
class Transactions:
    """Transactions of the worker's own.

    Args:
        engine: where the worker writes.
        stopping: set when the worker is to stop.
        open_session: opens sessions of the application's kind; None: plain ones on the engine.
        mapper: of the class whose rows are written, if such sessions may route them.

    Attributes:
        kept: the connection of the turns; None: each takes one of the pool's.
        trouble: why the worker cannot claim now; None: its last turn has succeeded.
    """

    engine: Engine
    runtime: Runtime
    stopping: Flag
    open_session: Callable[[], Session] | None = None
    mapper: Any = None
    kept: KeptConnection | None = field(default=None, init=False)
    trouble: str | None = field(default="the worker has not begun", init=False)
    _succeeded_once: bool = field(default=False, init=False)

    def keep_connection(self, connection: Connection) -> None:
        """Keep a connection for the turns, if sessions like these would use it."""
        opened, database = self.open_session, database_of(connection)
        if opened is None or may_be_bound(opened, connection, self.mapper):
            is_shared = database.may_wait_without_limit and database.through_pooler(connection)
            self.kept = KeptConnection(self.engine, opened, is_shared=is_shared)

    def run(
        self,
        work: Callable[[Session], R],
        *,
        conflicts: timedelta = PATIENCE,
        heeds_stop: bool = True,
        reads_first: Callable[[], bool] = lambda: True,
        writes_claims: bool = False,
    ) -> R:
        """Run and commit a transaction on the connection of the turns, as :meth:`patiently` does.

        Args:
            reads_first: returns False if `work` only calls verbs, which write before they read;
                called before each try.
            writes_claims: True if `work` finishes or releases jobs, whose rows others may have
                locked: it then waits for a row for LOCK_WAIT, where the server has no limit.
        """

        def once() -> R:
            kept = self.kept
            if kept is None or not kept.take():
                return run_with(self.open_session, _limit_lock_wait)
            with kept:
                return run_with(kept.open_session, kept.limit_lock_wait)

        def run_with(
            open_session: Callable[[], Session] | None, limit: Callable[[Connection], object]
        ) -> R:
            return run_in_transaction(
                self.engine,
                work,
                open_session=open_session,
                mapper=self.mapper,
                reads_first=reads_first(),
                prepare=limit if writes_claims else None,
            )

        result = self.patiently(once, conflicts=conflicts, heeds_stop=heeds_stop)
        self._succeeded_once, self.trouble = True, None
        return result

    def run_once(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction on a connection of the pool's."""
        return run_in_transaction(
            self.engine, work, open_session=self.open_session, mapper=self.mapper
        )

    def run_in(
        self, open_session: Callable[[], Session], work: Callable[[Session], R], *, mapper: Any
    ) -> R:
        """Run and commit a transaction in other sessions, as :meth:`patiently` does."""
        return self.patiently(
            lambda: run_in_transaction(self.engine, work, open_session=open_session, mapper=mapper)
        )

    def patiently(
        self,
        work: Callable[[], R],
        *,
        conflicts: timedelta = PATIENCE,
        heeds_stop: bool = True,
    ) -> R:
        """Call `work`, again while its error is temporary, for PATIENCE.

        Args:
            conflicts: for how long it is called again after deadlocks and waits for locks.
            heeds_stop: False: the work has handled jobs to finish, and goes on at a stop.

        Raises:
            Stopped: the worker is to stop.
            Exception: what is not temporary, or has lasted for too long.
        """
        began, growing, warned = time.monotonic(), pauses(), False
        while True:
            try:
                return work()
            except Exception as error:
                lacking = is_shortage(error) or isinstance(error, PoolTimeout)
                away = self.is_away(error)
                patience = PATIENCE if lacking or away else conflicts
                late = time.monotonic() > began + patience.total_seconds()
                if late or not self.is_temporary(error):
                    raise
                if away:  # a deadlock keeps nobody from claiming
                    self.trouble = f"database away: {cause_of(error)}"
                grave = lacking or not self._succeeded_once or not heeds_stop
                write = log.warning if grave and not warned else log.info
                write("a transaction failed, and is run again: %s", cause_of(error))
                warned = True
                if heeds_stop and self.stopping.is_set():
                    raise Stopped from error
            (self.stopping.wait if heeds_stop else self.runtime.sleep)(next(growing))

    def is_temporary(self, error: BaseException) -> bool:
        """Tell whether an error passes with time."""
        return is_transient(error) or is_shortage(error) or self.is_away(error)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether no connection was to be had, or it broke: the server may be restarting."""
        # The connection of an owner's lock, and a pool whose connections are all in use.
        if isinstance(error, LockLost | PoolTimeout):
            return True
        if not isinstance(error, DBAPIError):  # a handle_error listener has raised the driver's own
            dialect: Any = self.engine.dialect
            return is_of_driver(error) and bool(dialect.is_disconnect(error, None, None))
        if error.connection_invalidated:
            return True
        # A failure to connect is an error without a statement: PyMySQL's InternalError, too, if the
        # server ends amid the login. Before the first success the URL may be wrong: then the
        # server says so.
        failures = OperationalError | InterfaceError | InternalError
        connecting = isinstance(error, failures) and error.statement is None
        return connecting and (self._succeeded_once or not is_refused_login(error))


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error behind SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _limit_lock_wait(connection: Connection, *, of_session: bool = False) -> bool:
    """Limit the waits for locked rows; return whether they had no limit."""
    return database_of(connection).limit_lock_wait(connection, LOCK_WAIT, of_session=of_session)


class KeptConnection:
    """The connection of the turns, and a chore that gives it back in time.

    Turns run one after the other, in any thread. Each takes the connection, and uses it in a
    ``with``: the connection is kept if the turn succeeds.

    Args:
        open_session: opens a session of the application's kind for each turn, which
            :func:`may_be_bound` allows; None: the turns share a plain one.
        is_shared: by the clients of a pooler: a later transaction may be another client's.

    Attributes:
        due_at: when the connection is to be given back, by time.monotonic(); infinity: none is
            kept, or a turn uses it.
    """

    def __init__(
        self, engine: Engine, open_session: Callable[[], Session] | None, *, is_shared: bool
    ) -> None:
        self._engine, self._pool = engine, engine.pool
        self._open_session = open_session
        self._is_shared = is_shared
        self._in_use = Lock()
        self._connection: Connection | None = None
        self._is_limited: bool | None = None  # whether its waits are, by us; None: not asked yet
        self._until = self.due_at = math.inf

    def take(self) -> bool:
        """Take the connection for a turn; False: the chore gives it back just now."""
        return self._in_use.acquire(blocking=False)

    def __enter__(self) -> None:
        self.due_at = math.inf

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._give_back()
        self.due_at = self._until
        self._in_use.release()

    def run(self) -> None:
        """Give the connection back to the pool, unless a turn uses it."""
        if self.take():
            with self:
                self._give_back()

    def open_session(self) -> Session:
        """Return the session of a turn, on the kept connection or a new one."""
        if time.monotonic() >= self._until or self._engine.pool is not self._pool:
            self._give_back()
        if self._connection is None:
            self._connection = connect(self._engine)
            self._plain = Session(self._connection, expire_on_commit=False)
            self._pool, self._until = self._engine.pool, time.monotonic() + KEPT_FOR
            self._is_limited = None
        if self._open_session is None:
            return self._plain
        session = self._open_session()
        session.bind = self._connection
        return session

    def limit_lock_wait(self, connection: Connection) -> None:
        """Limit the waits for locked rows: in this transaction, and those that follow."""
        if self._is_shared:
            _limit_lock_wait(connection)
        elif self._is_limited is None:
            self._is_limited = _limit_lock_wait(connection, of_session=True)

    def _give_back(self) -> None:
        """Give the connection back to the pool, which resets it, and without our limit."""
        connection, self._connection, self._until = self._connection, None, math.inf
        if connection is None:
            return
        try:
            if self._is_limited and not connection.invalidated:
                database_of(connection).lift_lock_wait_limit(connection)
                connection.commit()
            self._is_limited = False
        except Exception as error:
            log.info("a connection is closed, and not given back to its pool: %s", error)
        finally:
            # dispose() has replaced the pool: nobody would close the connection any more.
            if self._is_limited or self._engine.pool is not self._pool:
                connection.invalidate()
            connection.close()
