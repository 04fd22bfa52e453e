"""A worker's transactions, which are run again after a temporary error."""

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

from ..dialects import (
    database_of,
    is_mistake,
    is_of_driver,
    is_refused_login,
    is_shortage,
    is_transient,
)
from ..dialects.connections import driver_errors
from ..errors import JobQueueError, LockLost, MissingTable
from ..process import Flag, Runtime
from ..sessions.transactions import run_in_transaction
from .connections import LOCK_WAIT, KeptConnection, may_be_bound

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")


Prepare = Callable[[Connection], None]

#: For how long a transaction is run again before its error is raised: long enough for a restart
#: of the server.
PATIENCE = timedelta(minutes=5)

SHORTEST_PAUSE = timedelta(milliseconds=50)
LONGEST_PAUSE = timedelta(seconds=2)


class Stopped(BaseException):
    """The worker is to stop while it waits for its database.

    It ends the run as a KeyboardInterrupt does, but no error is raised, and handled jobs are
    finished.
    """


def _always() -> bool:
    return True


class Transactions:
    """Transactions of the worker's own.

    Args:
        engine: where the worker writes.
        stopping: set when the worker is to stop.
        open_session: opens sessions of the application's kind; None: plain ones on the engine.
        mapper: of the class whose rows are written.
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
        self._open_session = open_session
        self._mapper = None if open_session is None else mapper
        # A closed session may be used again: a new one for each turn would look its events up anew.
        self._closed: list[Session] = []
        self._runtime = runtime
        self._stopping = stopping
        self._succeeded_once = False
        #: Why the worker cannot claim now; None: its last turn has succeeded.
        self.trouble: str | None = "the worker has not begun"

    def may_keep(self, connection: Connection) -> bool:
        """Tell whether its sessions would use this connection of the engine, if it were kept."""
        if self._open_session is None:
            return True
        return may_be_bound(self._open_session, connection, self._mapper)

    def kept_connection(self) -> KeptConnection:
        """Return what keeps a connection for its sessions."""
        return KeptConnection(self.engine, self._open_session)

    def run(
        self,
        work: Callable[[Session], R],
        *,
        patience: timedelta | None = None,
        reads_first: Callable[[], bool] = _always,
        writes_claims: bool = False,
        kept: KeptConnection | None = None,
    ) -> R:
        """Run and commit a transaction, again while its error is temporary.

        Args:
            patience: for how long; None: for PATIENCE, or until the worker is to stop.
            reads_first: returns False if `work` only calls verbs, which write before they read;
                called before each try.
            writes_claims: True if `work` finishes or releases jobs, whose rows others may have
                locked: it then waits for a row for LOCK_WAIT, where the server has no limit.
            kept: the connection to use; None: any of the pool's.

        Raises:
            Stopped: the worker is to stop.
        """

        def once() -> R:
            if kept is None:
                prepare = _limit_lock_wait if writes_claims else None
                return self._run_once(work, reads_first=reads_first(), prepare=prepare)
            return kept.use(
                lambda session, limit_lock_wait: self._run(
                    lambda: session,
                    work,
                    reads_first=reads_first(),
                    prepare=limit_lock_wait if writes_claims else None,
                )
            )

        result = self.patiently(once, patience)
        self._succeeded_once, self.trouble = True, None
        return result

    def run_in(
        self, open_session: Callable[[], Session], work: Callable[[Session], R], *, mapper: Any
    ) -> R:
        """Run and commit a transaction in other sessions, again after errors as :meth:`run` does.

        Raises:
            Stopped: the worker is to stop.
        """
        return self.patiently(
            lambda: run_in_transaction(self.engine, work, open_session=open_session, mapper=mapper)
        )

    def run_once(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction that finishes and releases no jobs."""
        return self._run_once(work, reads_first=True, prepare=None)

    def _run_once(
        self, work: Callable[[Session], R], *, reads_first: bool, prepare: Prepare | None
    ) -> R:
        if self._open_session is not None:
            return self._run(self._open_session, work, reads_first=reads_first, prepare=prepare)
        session = self._plain_session()
        result = self._run(lambda: session, work, reads_first=reads_first, prepare=prepare)
        self._closed.append(session)
        return result

    def _plain_session(self) -> Session:
        try:
            return self._closed.pop()
        except IndexError:
            return Session(self.engine, expire_on_commit=False)

    def _run(
        self,
        open_session: Callable[[], Session],
        work: Callable[[Session], R],
        *,
        reads_first: bool,
        prepare: Prepare | None,
    ) -> R:
        return run_in_transaction(
            self.engine,
            work,
            open_session=open_session,
            mapper=self._mapper,
            reads_first=reads_first,
            prepare=prepare,
        )

    def patiently(self, work: Callable[[], R], patience: timedelta | None = None) -> R:
        """Call `work`, again while its error is temporary; see :meth:`run`."""
        began = time.monotonic()
        pauses: Pauses | None = None
        warned = False
        while True:
            try:
                return work()
            except Exception as error:
                if pauses is None:
                    wait = self._stopping.wait if patience is None else self._runtime.sleep
                    pauses = Pauses(wait, PATIENCE if patience is None else patience, began)
                if pauses.are_over or not self.is_temporary(error):
                    raise
                if self.is_away(error):  # a deadlock keeps nobody from claiming
                    self.trouble = f"database away: {cause_of(error)}"
                lacking = is_shortage(error) or isinstance(error, PoolTimeout)
                grave = lacking or not self._succeeded_once
                write = log.warning if grave and not warned else log.info
                write("a transaction failed, and is run again: %s", cause_of(error))
                warned = True
                if patience is None and self._stopping.is_set():
                    raise Stopped from error
            pauses.pause()

    def pauses(self, patience: timedelta = PATIENCE) -> Pauses:
        """Begin to wait for something."""
        return Pauses(self._runtime.sleep, patience, time.monotonic())

    def is_temporary(self, error: BaseException) -> bool:
        """Tell whether an error passes with time."""
        return is_transient(error) or is_shortage(error) or self.is_away(error)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether no connection was to be had, or it broke: the server may be restarting."""
        # The connection of an owner's lock, and a pool whose connections are all in use.
        if isinstance(error, LockLost | PoolTimeout):
            return True
        if not isinstance(error, DBAPIError):
            return is_of_driver(error) and self._is_disconnect(error)
        if error.connection_invalidated:
            return True
        # A failure to connect is an error without a statement: PyMySQL's InternalError, too, if the
        # server ends amid the login. Before the first success the URL may be wrong: then the
        # server says so.
        failures = OperationalError | InterfaceError | InternalError
        connecting = isinstance(error, failures) and error.statement is None
        return connecting and (self._succeeded_once or not is_refused_login(error))

    def _is_disconnect(self, error: BaseException) -> bool:
        """Ask the dialect about a driver's error that a handle_error listener has raised."""
        dialect: Any = self.engine.dialect
        return bool(dialect.is_disconnect(error, None, None))


class Refusals:
    """A refusal that repeats: it is logged once, and raised after PATIENCE.

    Args:
        what: what the database refuses, for the log.
    """

    def __init__(self, transactions: Transactions, what: str) -> None:
        self._transactions = transactions
        self._what = what
        self._has_succeeded = False
        self._pauses: Pauses | None = None
        self._next_try = 0.0  # by time.monotonic()

    @property
    def is_resting(self) -> bool:
        """Whether another try would come too soon; the pauses grow."""
        return self.rests_until < math.inf

    @property
    def rests_until(self) -> float:
        """When the next try is due, by time.monotonic(); inf: none is waited for."""
        resting = self._pauses is not None and time.monotonic() < self._next_try
        return self._next_try if resting else math.inf

    def note(self, error: Exception) -> None:
        """Note a refusal.

        Raises:
            Exception: the error, if it has lasted for PATIENCE or is not the database's.
        """
        mistaken = isinstance(error, JobQueueError) or (
            not self._has_succeeded and is_mistake(error)
        )
        # A temporary error has been waited for already.
        if mistaken or self._transactions.is_temporary(error):
            raise error
        if self._pauses is None:
            log.error(
                "the database refuses %s; the worker tries again: %s",
                self._what,
                cause_of(error),
                exc_info=error,
            )
            self._pauses = self._transactions.pauses()
        elif self._pauses.are_over:
            raise error
        self._next_try = time.monotonic() + self._pauses.next()

    def end(self) -> None:
        """Note a success."""
        self._has_succeeded = True
        self._pauses = None


class Pauses:
    """Growing pauses between tries, until `patience` is over.

    Args:
        began: when the first try began, by time.monotonic().
    """

    def __init__(self, wait: Callable[[float], object], patience: timedelta, began: float) -> None:
        self._wait = wait
        self._deadline = began + patience.total_seconds()
        self._next = SHORTEST_PAUSE.total_seconds()

    @property
    def are_over(self) -> bool:
        """Whether the time for further tries is over."""
        return time.monotonic() > self._deadline

    def pause(self) -> None:
        """Wait about twice as long as the last time."""
        self._wait(self.next())

    def next(self) -> float:
        """Return the next pause in seconds, for somebody who does not wait."""
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, LONGEST_PAUSE.total_seconds())
        return pause


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error behind SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _limit_lock_wait(connection: Connection) -> None:
    """Limit the waits for locked rows until the transaction ends."""
    database_of(connection).limit_lock_wait(connection, LOCK_WAIT, of_session=False)


class Tries:
    """Try the parts of a chore again and again; an error is logged when it comes, not each time.

    Missing tables are logged once for all parts.

    Args:
        chore: what the worker goes on without while its tables are missing, for the log.
    """

    def __init__(self, transactions: Transactions, chore: str) -> None:
        self._transactions = transactions
        self._chore = chore
        self._logged: set[str] = set()  # the parts whose error was logged
        self._lacking: set[str] = set()  # the parts that have not found their table

    def run(self, part: str, work: Callable[[], object]) -> bool:
        """Call `work`, which is named `part` in the log; tell whether it succeeded."""
        try:
            work()
        except MissingTable as error:  # it says the way out; a traceback adds nothing
            if not self._lacking:
                log.warning("the worker goes on without %s: %s", self._chore, error)
            self._lacking.add(part)
            return False
        except Exception as error:
            self._note(part, error)
            return False
        self._logged.discard(part)
        self._lacking.discard(part)
        return True

    def _note(self, part: str, error: Exception) -> None:
        if self._transactions.is_temporary(error):
            log.info("%s failed; the worker tries again: %s", part, cause_of(error))
        elif part not in self._logged:
            self._logged.add(part)
            refused = any(driver_errors(error))
            what = f"the database refuses {part}" if refused else f"{part} failed"
            log.error("%s; the worker tries again: %s", what, cause_of(error), exc_info=error)
