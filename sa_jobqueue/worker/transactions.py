"""A worker's transactions, which are run again after a temporary error, and its owner.

The connection of the turns stays checked out from one turn to the next. A pool resets each
connection that it gets back. With PyMySQL, asyncmy and aiosqlite, the reset is a round trip for
each turn; with other drivers, it is a tenth of a turn's Python. An idle worker gives its connection
back after about a second.

A worker claims under an Owner of its own, unless it is given a name.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from ..dialects import database_of, is_of_driver, is_refused_login, is_shortage, is_transient
from ..errors import LockLost, UnsupportedDatabase
from ..owners.owner import Owner
from ..process import Flag, Runtime, process_name
from ..sessions.transactions import connected, run_in_transaction
from .connections import may_be_bound

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
            self.kept = KeptConnection(self, is_shared=is_shared)

    def run(
        self,
        work: Callable[[Session], R],
        *,
        finishes: bool = False,
        reads_first: Callable[[], bool] = lambda: True,
    ) -> R:
        """Run and commit a transaction on the connection of the turns, as :meth:`patiently` does.

        Args:
            finishes: as for :meth:`patiently`. If the server would wait for a locked row without a
                limit, `work` waits for LOCK_WAIT.
            reads_first: returns False if `work` only calls verbs, which write before they read;
                called before each try.
        """

        def once() -> R:
            kept = self.kept
            if kept is None or not kept.take():
                return run_on(self)
            with kept:
                return run_on(kept)

        def run_on(source: Transactions | KeptConnection) -> R:
            return run_in_transaction(
                self.engine,
                work,
                open_session=source.open_session,
                mapper=self.mapper,
                reads_first=reads_first(),
                prepare=source.limit_lock_wait if finishes else None,
            )

        result = self.patiently(once, finishes=finishes)
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

    def patiently(self, work: Callable[[], R], *, finishes: bool = False) -> R:
        """Call `work`, again while its error is temporary, for PATIENCE.

        Args:
            finishes: `work` has jobs to finish or to release. It goes on at a stop. After deadlocks
                and waits for locks, it is called again for UNDIVIDED.

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
                patience = PATIENCE if lacking or away or not finishes else UNDIVIDED
                late = time.monotonic() > began + patience.total_seconds()
                if late or not self.is_temporary(error):
                    raise
                if away:  # a deadlock keeps nobody from claiming
                    self.trouble = f"database away: {cause_of(error)}"
                grave = lacking or not self._succeeded_once or finishes
                write = log.warning if grave and not warned else log.info
                write("a transaction failed, and is run again: %s", cause_of(error))
                warned = True
                if self.stopping.is_set() and not finishes:
                    raise Stopped from error
            (self.runtime.sleep if finishes else self.stopping.wait)(next(growing))

    def limit_lock_wait(self, connection: Connection) -> None:
        """Limit the waits for locked rows until the transaction ends."""
        database_of(connection).limit_lock_wait(connection, LOCK_WAIT, of_session=False)

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


class KeptConnection:
    """The connection of the turns, and a chore that gives it back in time.

    Turns run one after the other, in any thread. Each takes the connection, and uses it in a
    ``with``: the connection is kept if the turn succeeds.

    Each has a session of the application's kind, which :func:`may_be_bound` allows; or the turns
    share a plain one.

    Args:
        is_shared: by the clients of a pooler: a later transaction may be another client's.

    Attributes:
        due_at: when the connection is to be given back, by time.monotonic(); infinity: none is
            kept, or a turn uses it.
    """

    def __init__(self, transactions: Transactions, *, is_shared: bool) -> None:
        self._engine, self._open_session = transactions.engine, transactions.open_session
        self._pool = self._engine.pool
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
            self._connection = connected(self._engine)
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
        if self._is_limited is None:
            database, lasts = database_of(connection), not self._is_shared
            limited = database.limit_lock_wait(connection, LOCK_WAIT, of_session=lasts)
            self._is_limited = limited if lasts else None

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


def default_owner() -> str:
    """Return a plain name for a worker: host, process id and a random part."""
    return f"{process_name(40)}-{random.getrandbits(32):08x}"


class OwnerName:
    """The name that a worker claims under.

    Attributes:
        owner: the name, or the Owner, that claims now.
    """

    def __init__(self, owner: str | int | Owner | None, transactions: Transactions) -> None:
        self.owner: str | int | Owner = default_owner() if owner is None else owner
        self._given = owner is not None
        self._transactions = transactions
        self._lost = False

    @contextmanager
    def for_the_run(self) -> Iterator[None]:
        """Hold an Owner of our own for the run, unless a name was given."""
        plain, ours = self.owner, Owner(self._transactions.engine, process_name(24))
        if not self._given:
            try:
                self._patiently(ours.open)
                self.owner = ours
            except UnsupportedDatabase as error:
                log.warning(
                    "if this worker dies, its claims are reaped only after their lease: %s", error
                )
        try:
            yield
        finally:
            self.owner = plain
            self._transactions.runtime.run_blocking(ours.close)

    @property
    def current(self) -> str:
        """The name that the worker claims under now, or has claimed under last."""
        return self.owner.known_name if isinstance(self.owner, Owner) else str(self.owner)

    @property
    def to_claim(self) -> str | None:
        """The name to claim under; None: the lock must be checked first, which takes time."""
        return self.current if self.is_sure else None

    def was_lost(self) -> bool:
        """Tell whether a lock was lost since the last call."""
        lost, self._lost = self._lost, False
        return lost

    @property
    def is_sure(self) -> bool:
        """Whether the lock is held, as far as is known without waiting; a plain name has none."""
        return not isinstance(self.owner, Owner) or self.owner.sure

    def check_lock(self) -> None:
        """Notice a lost lock, and take a new one, before a transaction begins.

        A new lock needs a connection, and the pool may have no second connection for it.
        """
        if not self.is_sure:
            with suppress(Stopped):  # then nothing is claimed any more
                self._patiently(self._check)

    def _check(self) -> None:
        assert isinstance(self.owner, Owner)  # a plain name is sure
        try:
            _ = self.owner.name  # reading it checks the lock, and takes a new one
        except LockLost as error:
            log.warning("%s", error)
            self._lost = True

    def _patiently(self, work: Callable[[], object]) -> None:
        runtime = self._transactions.runtime
        self._transactions.patiently(lambda: runtime.run_blocking(work))
