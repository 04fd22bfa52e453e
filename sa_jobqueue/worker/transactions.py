"""A worker's transactions: run again when their error is temporary."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.orm import Session

from ..dialects import is_mistake, is_of_driver, is_refused_login, is_shortage, is_transient
from ..errors import JobQueueError, LockLost
from ..process.runtime import Flag, Runtime
from ..sessions.transactions import run_in_transaction
from .kept_connection import KeptConnection

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: For how long a transaction is run again before its error is raised: long enough for a restart
#: of the server.
PATIENCE = timedelta(minutes=5)

SHORTEST_PAUSE = timedelta(milliseconds=50)
LONGEST_PAUSE = timedelta(seconds=2)


class Stopped(BaseException):
    """The worker was told to stop while it waited for its database.

    It ends the run as a KeyboardInterrupt does, but quietly: what was handled is finished.
    """


class Transactions:
    """Transactions of the worker's own.

    Args:
        engine: where the worker writes.
        stopping: set when the worker is told to stop.
        open_session: opens sessions of the application's kind; None: plain ones on the engine.
        mapper: whose rows are written.
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

    @property
    def plain_sessions(self) -> bool:
        """Whether its sessions are not of the application's kind."""
        return self._open_session is None

    def run(
        self,
        work: Callable[[Session], R],
        *,
        patience: timedelta | None = None,
        reads_first: bool = True,
        kept: KeptConnection | None = None,
    ) -> R:
        """Run and commit a transaction, again while its error is temporary.

        Args:
            patience: for how long; None: for PATIENCE, or until the worker is to stop.
            reads_first: False if the verbs of the library do all, which write before they read.
            kept: the connection to use; None: any of the pool's.

        Raises:
            Stopped: the worker is to stop.
        """

        def once() -> R:
            if kept is None:
                return self.run_once(work, reads_first=reads_first)
            return kept.use(
                lambda session: self._run(lambda: session, work, reads_first=reads_first)
            )

        result = self.patiently(once, patience)
        self._succeeded_once = True
        return result

    def run_in(
        self, open_session: Callable[[], Session], work: Callable[[Session], R], *, mapper: Any
    ) -> R:
        """Run and commit a transaction in sessions of another kind, again as :meth:`run` does.

        Raises:
            Stopped: the worker is to stop.
        """
        return self.patiently(
            lambda: run_in_transaction(self.engine, work, open_session=open_session, mapper=mapper)
        )

    def run_once(self, work: Callable[[Session], R], *, reads_first: bool = True) -> R:
        """Run and commit a transaction."""
        if self._open_session is not None:
            return self._run(self._open_session, work, reads_first=reads_first)
        session = self._plain_session()
        result = self._run(lambda: session, work, reads_first=reads_first)
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
    ) -> R:
        return run_in_transaction(
            self.engine,
            work,
            open_session=open_session,
            mapper=self._mapper,
            reads_first=reads_first,
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
                grave = is_shortage(error) or not self._succeeded_once
                write = log.warning if grave and not warned else log.info
                write("a transaction failed, and is run again: %s", cause_of(error))
                warned = True
                if patience is None and self._stopping.is_set():
                    raise Stopped from error
            pauses.pause()

    def pauses(self) -> Pauses:
        """Begin to wait for something, for PATIENCE at most."""
        return Pauses(self._runtime.sleep, PATIENCE, time.monotonic())

    def is_temporary(self, error: BaseException) -> bool:
        """Tell whether an error goes away with time."""
        return is_transient(error) or is_shortage(error) or self.is_away(error)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the connection broke or could not be made: the server may be restarting."""
        if isinstance(error, LockLost):  # the connection of an owner's lock
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
    """What the database refuses again and again: logged once, and raised after PATIENCE.

    Args:
        what: is refused, for the log.
    """

    def __init__(self, transactions: Transactions, what: str) -> None:
        self._transactions = transactions
        self._what = what
        self._has_succeeded = False
        self._pauses: Pauses | None = None

    def note(self, error: Exception) -> None:
        """Note a refusal.

        Raises:
            Exception: the error, if it has lasted for PATIENCE, or is the program's own.
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
        """Wait, each time about twice as long as before."""
        self._wait(self._next * random.uniform(0.5, 1.0))
        self._next = min(self._next * 2, LONGEST_PAUSE.total_seconds())


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error behind SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error
