"""A connection that holds a lock: watched, kept alive, and never replaced.

SQLAlchemy connects again where a connection has died, and so does not tell that the
session is another one, without its locks. So a :class:`LockConnection` is used until
its first error, and never after it.

It may be silent without being dead, behind a network that was cut. Then the server
frees the lock after some time (``Limits.silence``), and so this side gives it up before
that: whoever has not heard from the server for so long does not count on it any more.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ..errors import LockLost
from .drivers import driver_connection

log = logging.getLogger("sa_jobqueue.owners.named_lock")

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take between a lock's holder and its server.

    Attributes:
        silence: a holder that the server has not heard of for so long has lost its lock.
        pulse: the holder lets the server hear of it so often.
        answer: a server that does not answer for so long is taken for gone; more than
            it is asked to wait for a lock at a time.
    """

    silence: timedelta
    pulse: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=30)


class LockConnection:
    """One connection of its own for one lock, with a thread that keeps it alive.

    Args:
        engine: where to connect; its pool is not touched.
        limits: see there.
        backend: asks for the server process that works for a connection.

    Attributes:
        lock: the name of the lock that it holds, once it does.
    """

    #: Whether this is a copy in a forked child: the connection is its parent's.
    inherited = False

    def __init__(
        self, engine: Engine, limits: Limits, backend: Callable[[Connection], int | None]
    ) -> None:
        self.lock: str | None = None
        self._limits = limits
        self._backend = backend
        self._number: int | None = None
        self._turn = threading.Lock()
        self._asked: float | None = None
        self._lost = False
        self._why = "it was closed"
        self._over = False
        self._thread = threading.Thread(
            target=_keep_alive, args=(self,), name="sa_jobqueue lock", daemon=True
        )
        self._connection = dedicated_connection(engine)
        self._driver: Any = self._connection.connection.dbapi_connection
        self._file = _file_number(driver_connection(self._connection))
        self._socket = None if self._file is None else _second_handle(self._file)
        self._heard = time.monotonic()
        _all.add(self)
        self._begin()

    def identify(self) -> None:
        """Remember which server process works for us: no other one has our lock."""
        self._number = self.ask(self._backend)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Have one question answered by the server; any error is the last.

        Raises:
            LockLost: the connection is lost, or no answer came in time.
        """
        if not self._turn.acquire(timeout=self._limits.answer.total_seconds()):
            self.lose("no answer came from the server")
            raise LockLost("The server does not answer.")
        try:
            return self._ask(question)
        finally:
            self._turn.release()

    @property
    def lost(self) -> bool:
        """Whether it was lost, as far as can be seen from here."""
        if not self._lost and self._overdue(self._heard, self._limits.silence):
            self.lose("nothing was heard from the server for too long")
        if not self._lost and self._has_word() and self._turn.acquire(blocking=False):
            self._listen()
        return self._lost

    def beat(self) -> None:
        """Let the server hear of us if it is time, and hear what it has to say."""
        if self._turn.acquire(timeout=self._limits.pulse.total_seconds()):
            self._listen()
        elif self._overdue(self._asked, self._limits.answer):
            self.lose("no answer came from the server")

    def wait(self) -> bool:
        """Wait for the next beat, or for word from the server; False once it is over."""
        if not self._over and not self._lost:
            due = self._heard + self._limits.pulse.total_seconds() - time.monotonic()
            self._has_word(max(0.0, due))
        return not self._over and not self._lost

    def lose(self, why: str) -> None:
        """Note that it is lost, and end it for the server, too."""
        if not self._lost and not self._over:
            self._lost, self._why = True, why
            if self.lock is not None:
                log.warning("the lock %r was lost: %s", self.lock, why)
        self._hang_up()

    def close(self) -> None:
        """Close it, and end its thread."""
        self._over = True
        if self._turn.acquire(timeout=self._limits.answer.total_seconds()):
            try:
                self._close_driver()
            finally:
                self._turn.release()
        self._hang_up()
        if self._socket is not None and self._thread is not threading.current_thread():
            self._thread.join(self._limits.answer.total_seconds())

    def abandon(self) -> None:
        """Cut it off, and let its thread do the rest.

        Garbage collection may call this in any thread, in the middle of anything: it
        must not wait for a lock, so it takes none.
        """
        self._over = True
        self._hang_up()

    def leave_to_parent(self) -> None:
        """Let go of the parent's socket in a forked child, without a word to the server."""
        self.inherited = True
        if self._file is not None and self._socket is not None:
            # The driver may have closed it, and its number be another file's by now.
            if _same_file(self._file, self._socket.fileno()):
                _point_nowhere(self._file)
            self._socket.close()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except BaseException:  # no more threads are to be had
            self._close_driver()
            self._hang_up()
            raise

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        if self._lost or self._over:
            raise LockLost(f"The connection was lost: {self._why}.")
        asked = self._asked = time.monotonic()
        try:
            answer = question(self._connection)
        except BaseException as error:
            self.lose(str(error).partition("\n")[0])
            raise
        finally:
            self._asked = None
        self._heard = asked
        return answer

    def _listen(self) -> None:
        """Ping, if it is time or if there is word from the server; ends the turn."""
        try:
            if self._has_word() or self._overdue(self._heard, self._limits.pulse):
                self._ask(self._ping)
        except (SQLAlchemyError, OSError):
            pass  # noted by _ask()
        finally:
            self._turn.release()

    def _ping(self, connection: Connection) -> None:
        if self._backend(connection) != self._number and self._number is not None:
            raise LockLost("Another server process than before works for this connection.")

    def _overdue(self, since: float | None, limit: timedelta) -> bool:
        return since is not None and time.monotonic() - since >= limit.total_seconds()

    def _has_word(self, seconds: float = 0.0) -> bool:
        """Tell whether there is something to read, if only the end."""
        number = -1 if self._socket is None else self._socket.fileno()
        if number >= 0:
            return _readable(number, seconds)
        time.sleep(seconds)
        return False

    def _hang_up(self) -> None:
        """End the conversation for both sides: whoever still waits for an answer gets none."""
        if self._socket is not None:
            with suppress(OSError):  # the other side was first
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _close_driver(self) -> None:
        if self._connection.closed:
            return
        dialect = self._connection.dialect
        with suppress(dialect.loaded_dbapi.Error, OSError):  # closed already
            dialect.do_close(self._driver)
        # Without this its close() would roll back first, by a round trip.
        self._connection.invalidate()
        self._connection.close()


def dedicated_connection(engine: Engine) -> Connection:
    """Connect as the engine does, without its pool: AUTOCOMMIT, and really closed at its end.

    Not ``engine.connect()``: where a session has the pool's only connection, its
    thread would wait for a second one until the pool's timeout.
    """
    apart = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    connection = apart.connect()
    try:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return connection


def _keep_alive(connection: LockConnection) -> None:
    while connection.wait():
        connection.beat()
    connection.close()


# -- sockets ------------------------------------------------------------


def _file_number(driver: Any) -> int | None:
    """Find the number of a driver's socket; None where it does not tell."""
    # psycopg 2 and 3, mysqlclient; pg8000; PyMySQL.
    for holder in (driver, getattr(driver, "_usock", None), getattr(driver, "_sock", None)):
        ask = getattr(holder, "fileno", None)
        number = ask() if callable(ask) else None
        if isinstance(number, int) and number >= 0:
            return number
    return None


def _second_handle(number: int) -> socket.socket:
    """Open a second handle of the driver's socket.

    Ours, so that it is not closed and its number given to another file while it
    is looked at from another thread.
    """
    return socket.fromfd(number, -1, -1, -1)  # of what kind it is, it says itself


def _readable(number: int, seconds: float) -> bool:
    if hasattr(select, "poll"):  # select() knows no numbers above 1023
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select([number], [], [], seconds)[0])


# -- forks --------------------------------------------------------------

_all: WeakSet[LockConnection] = WeakSet()


def _same_file(number: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(number, other)
    except OSError:  # one of them is closed
        return False


def _point_nowhere(number: int) -> None:
    # Not closed: its number would be given to the next file, and the driver says
    # farewell to it when the child's copy of its connection is collected.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def _leave_all_to_parent() -> None:
    # A child that keeps the socket open would keep its dead parent's lock alive.
    for connection in list(_all):
        connection.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
