"""A worker's transactions, which are run again after a temporary error, and its owner.

The connection of the turns stays checked out from one turn to the next. A pool resets each
connection that it gets back. With PyMySQL, asyncmy and aiosqlite, the reset is a round trip for
each turn; with other drivers, it is a tenth of a turn's Python. An idle worker gives its connection
back after about a second.

A worker claims under an Owner of its own, unless it is given a name.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from ..databases import database_of, is_of_driver, is_refused_login, is_shortage, is_transient
from ..databases.connections import SharedConnections
from ..databases.watched_connection import WatchedConnection
from ..errors import LockLost, UnsupportedDatabase
from ..owners.owner import Owner
from ..process import Flag, Runtime, process_name
from ..sessions.transactions import connected, run_in_transaction

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: For how long a transaction is run again before its error is raised: long enough for a restart
#: of the server.
PATIENCE = timedelta(minutes=5)

#: For how long a turn or its part is run again after deadlocks and waits for locks, before its jobs
#: are finished one by one.
UNDIVIDED = timedelta(seconds=2)

#: How long a transaction of the worker waits for a locked row where the server would wait without
#: a limit.
LOCK_WAIT = timedelta(seconds=2)

#: The longest pause, in seconds, before one of several databases that is away is tried again.
LONGEST_PAUSE = 10.0

#: For how long a connection is kept, in seconds. A pool that pings, recycles or prepares its
#: connections does so once in this time.
KEPT_FOR = 1.0

#: The trouble of a worker that has not succeeded yet.
HAS_NOT_BEGUN = "the worker has not begun"


class Stopped(BaseException):
    """The worker is to stop while it waits for its database.

    It ends the run as a KeyboardInterrupt does, but no error is raised, and handled jobs are
    finished.
    """


class Pauses:
    """Growing pauses between tries, in seconds: each is twice as long as the one before.

    Args:
        spread: each pause is shorter by up to this part.

    Attributes:
        until: when the last pause ends, by time.monotonic().
    """

    def __init__(self, first: float = 0.05, longest: float = 2.0, *, spread: float = 0.5) -> None:
        self._pause, self._longest, self._spread = first, longest, spread
        self._began, self.until = time.monotonic(), 0.0

    @property
    def age(self) -> timedelta:
        """For how long there were tries."""
        return timedelta(seconds=time.monotonic() - self._began)

    def next(self) -> float:
        """Begin the next pause; return how long it is."""
        pause = self._pause * random.uniform(1 - self._spread, 1.0)
        self._pause, self.until = min(self._pause * 2, self._longest), time.monotonic() + pause
        return pause


@dataclass
class Patience:
    """For how long a worker's transactions are run again.

    Attributes:
        longest: with several databases timedelta.max: each is waited for alone.
        end_at: none is run again after this time of time.monotonic().
    """

    longest: timedelta = PATIENCE
    end_at: float = inf

    @property
    def is_endless(self) -> bool:
        """Whether no database that is away ends the run."""
        return self.longest > PATIENCE


@dataclass
class Transactions:
    """Transactions of the worker's own, in one database.

    Args:
        engine: where the worker writes.
        stopping: set when the worker is to stop.
        open_session: opens sessions of the application's kind; None: plain ones on the engine.
        mapper: of the class whose rows are written, if such sessions may route them.
        open_for_handlers: opens the sessions of transactional handlers.

    Attributes:
        wait_for_renewal: waits until no renewal of claims is under way.
        give_way: lets other databases claim while this one is away.
        keeps: the turns keep a connection.
        kept_until: when it is to be given back, by time.monotonic(); infinity: there is none.
        trouble: why the worker cannot claim now; None: its last turn has succeeded.
    """

    engine: Engine
    runtime: Runtime
    stopping: Flag
    open_session: Callable[[], Session] | None = None
    mapper: Any = None
    open_for_handlers: Callable[[], Session] | None = None
    patience: Patience = field(default_factory=Patience)
    wait_for_renewal: Callable[[], None] = lambda: None
    give_way: Callable[[], None] = lambda: None
    keeps: bool = field(default=False, init=False)
    trouble: str | None = field(default=HAS_NOT_BEGUN, init=False)
    _succeeded_once: bool = field(default=False, init=False)
    _kept: Session | None = field(default=None, init=False)
    _pool: Any = field(default=None, init=False)  # of the kept connection
    kept_until: float = field(default=inf, init=False)
    _is_limited: bool | None = field(default=None, init=False)  # None: not asked yet

    def run(
        self,
        work: Callable[[Session], R],
        *,
        finishes: bool = False,
        reads_first: Sequence[Any] | bool = True,
    ) -> R:
        """Run and commit a transaction on the connection of the turns, as :meth:`patiently` does.

        Args:
            finishes: as for :meth:`patiently`. If the server would wait for a locked row without a
                limit, `work` waits for LOCK_WAIT.
            reads_first: empty if `work` only calls verbs, which write before they read; it may
                be filled by a try.
        """

        def once() -> R:
            try:
                return run_in_transaction(
                    self.engine,
                    work,
                    open_session=self._session_of_turn if self.keeps else self.open_session,
                    mapper=self.mapper,
                    reads_first=bool(reads_first),
                    prepare=self._limit_lock_wait if finishes else None,
                )
            except BaseException:
                self.give_back()
                raise

        result = self.patiently(once, finishes=finishes)
        self._succeeded_once, self.trouble = True, None
        return result

    def run_once(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction on a connection of the pool's."""
        return run_in_transaction(
            self.engine, work, open_session=self.open_session, mapper=self.mapper
        )

    def run_for_handler(self, work: Callable[[Session], R], *, mapper: Any) -> R:
        """Run and commit a transaction in a handler's session, as :meth:`patiently` does.

        If the worker has other databases, it does not wait for one that is away: its thread is
        theirs, too.
        """
        return self.patiently(
            lambda: run_in_transaction(
                self.engine, work, open_session=self.open_for_handlers, mapper=mapper
            ),
            waits=not self.patience.is_endless,
        )

    def patiently(self, work: Callable[[], R], *, finishes: bool = False, waits: bool = True) -> R:
        """Call `work`, again while its error is temporary, as long as our patience lasts.

        Args:
            finishes: `work` has jobs to finish or to release. It goes on at a stop. After deadlocks
                and waits for locks, it is called again for UNDIVIDED.
            waits: for a database that is away.

        Raises:
            Stopped: the worker is to stop.
            Exception: what is not temporary, or has lasted for too long.
        """
        rests = self.patience.is_endless and not finishes  # a stop ends such a pause
        pauses, warned = Pauses(longest=LONGEST_PAUSE if rests else 2.0), False
        while True:
            try:
                return work()
            except Exception as error:
                lacking = is_shortage(error) or isinstance(error, PoolTimeout)
                missing, patience = self.is_missing(error), self.patience
                longest = UNDIVIDED if finishes and not missing else patience.longest
                is_over = pauses.age > longest or time.monotonic() > patience.end_at
                # A deadlock keeps nobody from claiming.
                if self.is_away(error) or (missing and patience.is_endless):
                    self.trouble = f"database away: {cause_of(error)}"
                    self.give_way()
                in_vain = missing and not waits
                if is_over or in_vain or not self.is_temporary(error):
                    raise
                grave = lacking or not self._succeeded_once or finishes
                write = log.warning if grave and not warned else log.info
                write("a transaction failed, and is run again: %s", cause_of(error))
                warned = True
                if self.stopping.is_set() and not finishes:
                    raise Stopped from error
            (self.runtime.sleep if finishes else self.stopping.wait)(pauses.next())

    def _session_of_turn(self) -> Session:
        """Return a session on the kept connection, or on a new one that is kept."""
        if time.monotonic() >= self.kept_until or self.engine.pool is not self._pool:
            self.give_back()
        if self._kept is None:
            self._pool = self.engine.pool
            self._kept = Session(connected(self.engine), expire_on_commit=False)
            self.kept_until, self._is_limited = time.monotonic() + KEPT_FOR, None
        if self.open_session is None:
            return self._kept
        session = self.open_session()
        session.bind = self._kept.bind
        return session

    def _limit_lock_wait(self, connection: Connection) -> None:
        """Limit the waits for locked rows, as long as the connection is ours."""
        if self._is_limited is None or not self.keeps:
            limit = database_of(connection).limit_lock_wait
            self._is_limited = limit(connection, LOCK_WAIT, of_session=self.keeps)

    def give_back(self) -> None:
        """Give the kept connection back to its pool, without our limit."""
        kept, self._kept, self.kept_until = self._kept, None, inf
        if kept is None:
            return
        connection: Any = kept.bind
        try:
            if self._is_limited and not connection.invalidated:
                database_of(connection).lift_lock_wait_limit(connection)
                connection.commit()
        except Exception as error:
            log.info("a connection is closed, and not given back to its pool: %s", error)
            connection.invalidate()
        finally:
            if self.engine.pool is not self._pool:  # dispose() has replaced it: nobody closes this
                connection.invalidate()
            connection.close()

    def is_temporary(self, error: BaseException) -> bool:
        """Tell whether an error passes with time."""
        return is_transient(error) or is_shortage(error) or self.is_away(error)

    def is_missing(self, error: BaseException) -> bool:
        """Tell whether the database is away, or takes no writes at present."""
        return self.is_away(error) or is_shortage(error)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether no connection was to be had, or it broke: the server may be restarting."""
        # The connection of an owner's lock, and a pool whose connections are all in use.
        if isinstance(error, LockLost | PoolTimeout):
            return True
        if not isinstance(error, DBAPIError):  # a handle_error listener has raised the driver's own
            dialect: Any = self.engine.dialect
            return is_of_driver(error) and bool(dialect.is_disconnect(error, None, None))
        # A failure to connect is an error without a statement: PyMySQL's InternalError, too, if the
        # server ends amid the login. Before the first success the URL may be wrong: then the
        # server says so.
        failures = OperationalError | InterfaceError | InternalError
        connecting = isinstance(error, failures) and error.statement is None
        may_pass = self._succeeded_once or not is_refused_login(error)
        return error.connection_invalidated or (connecting and may_pass)


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error behind SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def default_owner() -> str:
    """Return a plain name for a worker: host, process id and a random part."""
    return f"{process_name(40)}-{random.getrandbits(32):08x}"


class OwnerName:
    """The name that a worker claims under.

    Args:
        locks: where the locks of Owners of its own have connections in common.

    Attributes:
        owner: the name, or the Owner, that claims now; the worker shows it.
    """

    def __init__(
        self,
        given: Any,
        transactions: Transactions,
        show: Callable[[Any], None],
        locks: SharedConnections[WatchedConnection],
    ) -> None:
        self.transactions, self._given, self._show = transactions, given is not None, show
        self._locks = locks
        self._change_to(given if self._given else default_owner())

    def _change_to(self, owner: str | int | Owner) -> None:
        self.owner = owner
        self._show(owner)

    @contextmanager
    def for_the_run(self) -> Iterator[None]:
        """Hold an Owner of our own for the run, unless a name was given."""
        plain, ours = self.owner, Owner(self.transactions.engine, process_name(24))
        ours.shared = self._locks
        if not self._given:
            try:
                self._patiently(ours.open)
                self._change_to(ours)
            except UnsupportedDatabase as error:
                log.warning(
                    "if this worker dies, its claims are reaped only after their lease: %s", error
                )
        try:
            yield
        finally:
            self._change_to(plain)
            self.transactions.runtime.run_blocking(ours.close)

    @property
    def current(self) -> str:
        """The name that the worker claims under now, or has claimed under last."""
        return self.owner.known_name if isinstance(self.owner, Owner) else str(self.owner)

    @property
    def is_sure(self) -> bool:
        """Whether the lock is held, as far as is known without waiting; a plain name has none."""
        return not isinstance(self.owner, Owner) or self.owner.sure

    def check_lock(self) -> bool:
        """Take a new lock if ours was lost, before a transaction begins; tell whether it was.

        A new lock needs a connection, and the pool may have no second connection for it.
        """
        try:
            return not self.is_sure and self._patiently(self._take_new_lock)
        except Stopped:  # then nothing is claimed any more
            return False

    def _take_new_lock(self) -> bool:
        try:
            _ = self.owner.name  # type: ignore[union-attr]  # a plain name is sure
        except LockLost as error:
            log.warning("%s", error)
            return True
        return False

    def _patiently(self, work: Callable[[], R]) -> R:
        run: Callable[[Callable[[], R]], R] = self.transactions.runtime.run_blocking
        return self.transactions.patiently(lambda: run(work))
