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
from collections.abc import Callable
from datetime import timedelta
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


class Pauses:
    """Growing pauses between tries: each is about twice as long as the one before.

    Args:
        first: in seconds, as `longest`.
        spread: each pause is shorter by up to this part.
        until: by time.monotonic(), when the time for further tries is over.
    """

    def __init__(
        self,
        first: float = 0.05,
        longest: float = 2.0,
        *,
        spread: float = 0.5,
        until: float = math.inf,
    ) -> None:
        self._next, self._longest = first, longest
        self._spread, self._until = spread, until

    @property
    def are_over(self) -> bool:
        """Whether the time for further tries is over."""
        return time.monotonic() > self._until

    def next(self) -> float:
        """Return the next pause in seconds."""
        pause = self._next * random.uniform(1 - self._spread, 1.0)
        self._next = min(self._next * 2, self._longest)
        return pause


class Transactions:
    """Transactions of the worker's own.

    Args:
        engine: where the worker writes.
        stopping: set when the worker is to stop.
        open_session: opens sessions of the application's kind; None: plain ones on the engine.
        mapper: of the class whose rows are written.

    Attributes:
        kept: the connection of the turns; None: each takes one of the pool's.
        trouble: why the worker cannot claim now; None: its last turn has succeeded.
    """

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        *,
        stopping: Flag,
        open_session: Callable[[], Session] | None = None,
        mapper: Any = None,
    ) -> None:
        self.engine = engine
        self.kept: KeptConnection | None = None
        self.trouble: str | None = "the worker has not begun"
        self._open_session = open_session
        self._mapper = None if open_session is None else mapper
        self._runtime = runtime
        self._stopping = stopping
        self._succeeded_once = False

    def keep_connection(self, connection: Connection) -> None:
        """Keep a connection for the turns, if sessions like these would use it."""
        opened = self._open_session
        if opened is None or may_be_bound(opened, connection, self._mapper):
            self.kept = KeptConnection(self.engine, opened)

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
            if self.kept is None:
                prepare = _limit_lock_wait if writes_claims else None
                return self.run_once(work, reads_first=reads_first(), prepare=prepare)
            return self.kept.use(
                lambda session, limit_lock_wait: run_in_transaction(
                    self.engine,
                    work,
                    open_session=lambda: session,
                    mapper=self._mapper,
                    reads_first=reads_first(),
                    prepare=limit_lock_wait if writes_claims else None,
                )
            )

        result = self.patiently(once, conflicts=conflicts, heeds_stop=heeds_stop)
        self._succeeded_once, self.trouble = True, None
        return result

    def run_once(
        self,
        work: Callable[[Session], R],
        *,
        reads_first: bool = True,
        prepare: Callable[[Connection], None] | None = None,
    ) -> R:
        """Run and commit a transaction on a connection of the pool's."""
        return run_in_transaction(
            self.engine,
            work,
            open_session=self._open_session,
            mapper=self._mapper,
            reads_first=reads_first,
            prepare=prepare,
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
        began, warned = time.monotonic(), False
        pauses = Pauses()
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
                if heeds_stop and self._stopping.is_set():
                    raise Stopped from error
            (self._stopping.wait if heeds_stop else self._runtime.sleep)(pauses.next())

    def sleep(self, seconds: float) -> None:
        """Wait, also while the worker is to stop."""
        self._runtime.sleep(seconds)

    def is_temporary(self, error: BaseException) -> bool:
        """Tell whether an error passes with time."""
        return is_transient(error) or is_shortage(error) or self.is_away(error)

    def is_conflict(self, error: BaseException) -> bool:
        """Tell whether others have locked what a transaction needs."""
        return self.is_temporary(error) and not is_shortage(error) and not self.is_away(error)

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


def _limit_lock_wait(connection: Connection) -> None:
    """Limit the waits for locked rows until the transaction ends."""
    database_of(connection).limit_lock_wait(connection, LOCK_WAIT, of_session=False)


class _Kept:
    """A connection, and the session that the turns use on it if it is a plain one."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.pool = engine, engine.pool
        self.until = time.monotonic() + KEPT_FOR
        self.connection = connect(engine)
        self.plain = Session(self.connection, expire_on_commit=False)
        self.is_shared: bool | None = None  # by a pooler's clients; None: not asked yet
        self.is_settled = self.is_limited = False

    @property
    def is_of_engine(self) -> bool:
        """Whether the engine still has the connection's pool; dispose() replaces the pool."""
        return self.engine.pool is self.pool

    def limit_lock_wait(self, connection: Connection) -> None:
        """Limit the waits for locked rows: in this transaction, and those that follow.

        Through a pooler, a later transaction may be another client's.
        """
        database = database_of(connection)
        if self.is_settled or not database.may_wait_without_limit:
            return
        if self.is_shared is None:
            self.is_shared = database.through_pooler(connection)
        limited = database.limit_lock_wait(connection, LOCK_WAIT, of_session=not self.is_shared)
        self.is_settled = not self.is_shared
        self.is_limited = limited and self.is_settled

    def close(self) -> None:
        """Give the connection back to the pool, which resets it."""
        try:
            if not self.is_of_engine:  # nobody would close it any more
                self.connection.invalidate()
            if self.is_limited and not self.connection.invalidated:
                database_of(self.connection).lift_lock_wait_limit(self.connection)
                self.connection.commit()
        except BaseException as error:
            self.connection.invalidate()
            if not isinstance(error, Exception):
                raise
            log.info("a connection is closed, and not given back to its pool: %s", error)
        finally:
            self.connection.close()


class KeptConnection:
    """The connection of the turns, and a chore that gives it back in time.

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
        self.run()

    def use(self, work: Callable[[Session, Callable[[Connection], None]], R]) -> R:
        """Call `work` with a session on the connection; keep the connection if it succeeds.

        Args:
            work: also gets a function that limits the waits for locked rows. It calls this
                function in its transaction, if it writes to rows that others may have locked.
        """
        kept = self._pop()
        if kept is not None and not (kept.is_of_engine and time.monotonic() < kept.until):
            kept.close()
            kept = None
        kept = kept or _Kept(self._engine)
        try:
            result = work(self._session_on(kept), kept.limit_lock_wait)
        except BaseException:
            kept.close()
            raise
        self._free.append(kept)
        if self._is_over:  # the run has ended without us, as it does if a handler never ends
            self.run()
        return result

    @property
    def due_at(self) -> float:
        """When the connection is to be given back, by time.monotonic(); infinity: none is kept."""
        return min((kept.until for kept in tuple(self._free)), default=math.inf)

    def run(self) -> None:
        """Give the connection back to the pool."""
        while (kept := self._pop()) is not None:
            kept.close()

    def _pop(self) -> _Kept | None:
        try:
            return self._free.pop()
        except IndexError:  # another thread has it
            return None

    def _session_on(self, kept: _Kept) -> Session:
        if self._open_session is None:
            return kept.plain
        session = self._open_session()
        session.bind = kept.connection
        return session
