"""A connection that holds a lock: watched, kept alive, and never replaced.

SQLAlchemy connects again where a connection has died, and does not tell that the new
session is without the locks of the old one. So a :class:`WatchedConnection` is used until
its first error, and never after it.

A connection may be silent without being dead: its network was cut. After some silence
(``Limits.silence``) the server frees the lock, and sooner where it sees that our host is gone.
This side gives the lock up before that: it counts the silence from its last question that was
answered. Its thread asks every few seconds, unless other code keeps Python's interpreter lock (GIL)
for minutes: then the server hears nothing of us, and we ask before we count on the lock again.
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
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import Connection, Engine

from ..errors import LockLost
from .connections import (
    calls_for,
    close_dedicated,
    dedicated_connection,
    driver_connection,
    file_number,
    leave_to_parent_after_fork,
)

log = logging.getLogger("sa_jobqueue.owners.named_lock")

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The times that a lock's holder and its server grant each other.

    Attributes:
        silence: the server frees the lock of a holder that it has not heard from for so long.
        pulse: the holder asks the server something at least this often.
        doubt: after so long without an answer the holder asks before it counts on the lock: the
            server may have seen that the network was cut. Shorter than that takes it.
        answer: the holder takes the lock for lost when the server has not answered for so
            long; longer than the server is asked to wait for a lock at a time.
    """

    silence: timedelta
    pulse: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=30)
    doubt: timedelta = timedelta(seconds=60)


#: How long a connection that is to be closed waits for an answer.
FAREWELL = timedelta(seconds=2)


class WatchedConnection:
    """A connection for one lock, with a thread that keeps it alive.

    Args:
        engine: where to connect; its pool is not touched.
        limits: when silence means that the lock is lost.
        backend: asks which server process works for a connection.
        after_answer: called after each answer of the server, in the thread that has asked, and
            when the connection is lost.
        receive: reads what the server has sent unasked; None: we ask it something, and so read.

    Attributes:
        lock: the name of the lock, as soon as the connection holds it.
    """

    #: Whether this is the copy in a forked child: the connection is its parent's.
    inherited = False

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        backend: Callable[[Connection], int | None],
        after_answer: Callable[[], None] | None = None,
        receive: Callable[[Connection], None] | None = None,
    ) -> None:
        self.lock: str | None = None
        self._limits = limits
        self._doubt = min(limits.doubt, limits.silence).total_seconds()
        self._answer = limits.answer.total_seconds()
        self._backend = backend
        self._after_answer = after_answer
        self._receive = receive or self._ping
        self._number: int | None = None
        self._mutex = threading.Lock()
        self._asked: float | None = None
        self._lost = False
        self._why = "it was closed"
        self._over = False
        self._thread = threading.Thread(
            target=_keep_alive, args=(self,), name="sa_jobqueue lock", daemon=True
        )
        self._calls = calls_for(engine)
        try:
            self._connection = self._calls.run(lambda: dedicated_connection(engine))
        except BaseException:
            self._calls.close()
            raise
        self._driver = self._connection.connection.dbapi_connection
        self._file = file_number(driver_connection(self._connection))
        self._socket = None if self._file is None else _second_handle(self._file)
        self._heard = time.monotonic()
        leave_to_parent_after_fork(self)
        self._start_thread()

    def identify(self) -> None:
        """Remember which server process works for us: only this process has our lock."""
        self._number = self.ask(self._backend)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Ask the server something, and return its answer; after an error the connection is lost.

        Raises:
            LockLost: the connection is lost, or no answer came in time.
        """
        if not self._mutex.acquire(timeout=self._limits.answer.total_seconds()):
            self.lose("no answer came from the server")
            raise LockLost("The server does not answer.")
        try:
            return self._ask(question)
        finally:
            self._mutex.release()

    @property
    def lost(self) -> bool:
        """Whether the connection is lost, as far as this side can tell.

        It costs no round trip, unless the server was not heard of for a minute.
        """
        if self._lost:
            return True
        if self.sure:
            return False
        if self._overdue(self._heard, self._limits.silence):
            self.lose("nothing was heard from the server for too long")
        elif self._overdue(self._asked, self._limits.answer):  # the thread's ping still waits
            self.lose("no answer came from the server")
        elif self._overdue(self._heard, self._limits.doubt):
            self._listen_for(self._limits.answer)
        elif self._has_input() and self._mutex.acquire(blocking=False):
            self._listen()
        return self._lost

    @property
    def sure(self) -> bool:
        """Whether the server was heard of lately, and nothing of it waits to be read."""
        asked, now = self._asked, time.monotonic()
        late = now - self._heard >= self._doubt or (
            asked is not None and now - asked >= self._answer
        )
        return not (self._lost or late or self._has_input())

    def beat(self) -> None:
        """Ping the server if it is time, and read what it has sent."""
        if self._mutex.acquire(timeout=self._limits.pulse.total_seconds()):
            self._listen()
        elif self._overdue(self._asked, self._limits.answer):
            self.lose("no answer came from the server")

    def wait(self) -> bool:
        """Wait until the next beat is due or the server sends something; False once it is over."""
        if not self._over and not self._lost:
            due = self._heard + self._limits.pulse.total_seconds() - time.monotonic()
            self._has_input(max(0.0, due))
        return not self._over and not self._lost

    def lose(self, why: str) -> None:
        """Note that the connection is lost, and end it for the server too."""
        if not self._lost and not self._over:
            self._lost, self._why = True, why
            if self.lock is not None:
                log.warning("the lock %r was lost: %s", self.lock, why)
        self._hang_up()
        if self._after_answer is not None:
            self._after_answer()

    def hurry(self) -> None:
        """Wait for answers no longer than FAREWELL: the connection is to be closed."""
        self._limits = replace(self._limits, answer=FAREWELL, pulse=FAREWELL)

    def close(self) -> None:
        """Close the connection, and end its thread."""
        self._over = True
        self.hurry()
        if self._mutex.acquire(timeout=self._limits.answer.total_seconds()):
            try:
                self._close_driver()
            finally:
                self._mutex.release()
        self._hang_up()
        if self._socket is not None and self._thread is not threading.current_thread():
            self._thread.join(self._limits.answer.total_seconds())

    def abandon(self) -> None:
        """Cut the connection off, and let its thread close it.

        Garbage collection may call this in any thread, in the middle of anything: so it
        must not wait for a lock, and takes none.
        """
        self._over = True
        self._hang_up()

    def leave_to_parent(self) -> None:
        """Let go of the parent's socket in a forked child, without a word to the server."""
        self.inherited = True
        if self._file is not None and self._socket is not None:
            # The driver may have closed its socket: then the number may be another file's.
            if _same_file(self._file, self._socket.fileno()):
                _point_nowhere(self._file)
            self._socket.close()

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except BaseException:  # the process cannot start another thread
            self._close_driver()
            self._hang_up()
            raise

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        if self._lost or self._over:
            raise LockLost(f"The connection was lost: {self._why}.")
        asked = self._asked = time.monotonic()
        try:
            answer = self._calls.run(lambda: question(self._connection))
        except BaseException as error:
            self.lose(str(error).partition("\n")[0])
            raise
        finally:
            self._asked = None
        self._heard = asked
        if self._after_answer is not None:
            self._after_answer()
        return answer

    def _listen_for(self, longest: timedelta) -> None:
        """Ping the server, after another thread's question."""
        if self._mutex.acquire(timeout=longest.total_seconds()):
            self._listen()
        else:
            self.lose("no answer came from the server")

    def _listen(self) -> None:
        """Ping if it is time or the server has sent something; then release the mutex."""
        try:
            if self._has_input():
                self._ask(self._receive)
            elif self._overdue(self._heard, self._limits.pulse):
                self._ask(self._ping)
        except Exception:  # also what a handle_error listener of the application raises
            pass  # _ask() has noted the loss, and logged its reason
        finally:
            self._mutex.release()

    def _ping(self, connection: Connection) -> None:
        if self._backend(connection) != self._number and self._number is not None:
            raise LockLost("A different server process works for this connection now.")

    def _overdue(self, since: float | None, limit: timedelta) -> bool:
        return since is not None and time.monotonic() - since >= limit.total_seconds()

    def _has_input(self, seconds: float = 0.0) -> bool:
        """Tell whether there is something to read, or the other side has closed."""
        number = -1 if self._socket is None else self._socket.fileno()
        if number >= 0:
            return _readable(number, seconds)
        time.sleep(seconds)
        return False

    def _hang_up(self) -> None:
        """Shut the socket down for both sides: a thread that waits for an answer gets an error."""
        if self._socket is not None:
            with suppress(OSError):  # the other side has closed already
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _close_driver(self) -> None:
        if not self._connection.closed:
            self._calls.run(lambda: close_dedicated(self._connection, self._driver))
            self._calls.close()


def _keep_alive(connection: WatchedConnection) -> None:
    while connection.wait():
        connection.beat()
    connection.close()


# -- sockets ------------------------------------------------------------


def _second_handle(number: int) -> socket.socket:
    """Open a second handle of the driver's socket.

    The driver cannot close ours. So its number is not given to another file while another
    thread reads from it.
    """
    return socket.fromfd(number, -1, -1, -1)  # -1: the socket itself tells its kind


def _readable(number: int, seconds: float) -> bool:
    if hasattr(select, "poll"):  # select() knows no numbers above 1023
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select([number], [], [], seconds)[0])


def _same_file(number: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(number, other)
    except OSError:  # one of the two is closed
        return False


def _point_nowhere(number: int) -> None:
    # Not closed: its number would be given to the next file, to which the driver would
    # write when the child's copy of its connection is garbage-collected.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)
