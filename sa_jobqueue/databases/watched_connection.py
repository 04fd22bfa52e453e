"""A connection that holds a lock: watched, kept alive, and never replaced.

SQLAlchemy connects again where a connection has died, and does not tell that the new
session is without the locks of the old one. So a :class:`WatchedConnection` is used until
its first error, and never after it.

A connection may be silent without being dead: its network was cut. After some silence
(``Limits.silence``) the server frees the lock, and sooner where it sees that our host is gone.
This side gives the lock up before that: it counts the silence from its last question that was
answered. Its thread asks every few seconds, unless other code keeps Python's interpreter lock (GIL)
for minutes: then the server hears nothing of us, and we ask before we count on the lock again.

Several locks may have a connection in common: a worker of many schemas has one for the locks of all
its Owners.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, TextClause

from ..errors import LockLost, UnsupportedDatabase
from .connections import (
    Calls,
    SharedConnections,
    close_dedicated,
    dedicated_connection,
    driver_connection,
    file_number,
    leave_to_parent_after_fork,
)
from .database import Database
from .named_locks import Deadline, HeldLock, Key, Limits

log = logging.getLogger("sa_jobqueue.owners.named_lock")

Answer = TypeVar("Answer")


#: How long a connection that is to be closed waits for an answer.
FAREWELL = timedelta(seconds=2)

_NO_ANSWER = "no answer came from the server"


class WatchedConnection:
    """A connection that holds locks, with a thread that keeps it alive.

    Args:
        engine: where to connect; its pool is not touched.
        limits: when silence means that the locks are lost.
        backend: asks which server process works for a connection.

    Attributes:
        locks: the names of the locks that the connection holds.
    """

    #: Whether this is the copy in a forked child: the connection is its parent's.
    inherited = False

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        backend: Callable[[Connection], int | None],
    ) -> None:
        self.locks: list[str] = []
        self._limits = self._usual_limits = limits
        self._backend = backend
        self._number: int | None = None
        self._users, self._counting = 1, threading.Lock()
        self._mutex = threading.Lock()
        self._asked: float | None = None
        self._lost = False
        self._why = "it was closed"
        self._over = False
        self._thread = threading.Thread(
            target=_keep_alive, args=(self,), name="sa_jobqueue lock", daemon=True
        )
        self._calls = Calls(engine)
        try:
            self._connection = self._calls.run(lambda: dedicated_connection(engine))
        except BaseException:
            self._calls.close()
            raise
        self._driver = self._connection.connection.dbapi_connection
        self._file = file_number(driver_connection(self._connection))
        self._socket: socket.socket | None = None
        if self._file is not None:
            # A second handle, which the driver cannot close. So its number is not given to another
            # file while another thread reads from it. -1: the socket itself tells its kind.
            self._socket = socket.fromfd(self._file, -1, -1, -1)
        self._heard = time.monotonic()
        leave_to_parent_after_fork(self)
        self._thread.start()

    def join(self) -> bool:
        """Count one more user, who is to close it, too; False if it is closed or lost."""
        with self._counting:
            may = self._users > 0 and not self._lost
            self._users += may
        return may

    def identify(self) -> None:
        """Remember which server process works for us: only this process has our lock."""
        self._number = self.ask(self._backend)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Ask the server something, and return its answer; after an error the connection is lost.

        Raises:
            LockLost: the connection is lost, or no answer came in time.
        """
        while not self._mutex.acquire(timeout=self._limits.answer.total_seconds()):
            if self._is_overdue(self._asked, self._limits.answer):  # else others have asked, too
                self.lose(_NO_ANSWER)
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
        if self._lost or self.sure:
            return self._lost
        if self._is_overdue(self._heard, self._limits.silence):
            self.lose("nothing was heard from the server for too long")
        elif self._is_overdue(self._asked, self._limits.answer):  # the thread's ping still waits
            self.lose(_NO_ANSWER)
        else:
            in_doubt = self._is_overdue(self._heard, self._limits.doubt)
            self._listen(self._limits.answer if in_doubt else timedelta(0))
        return self._lost

    @property
    def sure(self) -> bool:
        """Whether the server was heard of lately, and nothing of it waits to be read."""
        doubt = min(self._limits.doubt, self._limits.silence)
        late = self._is_overdue(self._heard, doubt) or self._is_overdue(
            self._asked, self._limits.answer
        )
        return not (self._lost or late or self._has_input())

    def beat(self) -> None:
        """Ping the server if it is time, and read what it has sent."""
        self._listen(self._limits.pulse)

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
            if self.locks:
                log.warning("the lock %s was lost: %s", ", ".join(map(repr, self.locks)), why)
        self._hang_up()

    def hurry(self) -> None:
        """Wait for answers no longer than FAREWELL, until a user has closed the connection."""
        self._limits = replace(self._limits, answer=FAREWELL, pulse=FAREWELL)

    def close(self) -> None:
        """Close the connection, and end its thread, as soon as all its users have called this."""
        with self._counting:
            self._users -= 1
            if self._users > 0:
                self._limits = self._usual_limits
                return
        self.end()

    def end(self) -> None:
        """Close the connection, whoever uses it, and end its thread."""
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
        self._over = self._lost = True  # for those who share it, too
        self._hang_up()

    def leave_to_parent(self) -> None:
        """Let go of the parent's socket in a forked child, without a word to the server."""
        self.inherited = True
        if self._file is None or self._socket is None:
            return
        with suppress(OSError):  # the driver has closed its socket
            # Or the number is another file's by now.
            if os.path.sameopenfile(self._file, self._socket.fileno()):
                # Not closed: its number would be given to the next file, to which the driver would
                # write when the child's copy of its connection is garbage-collected.
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, self._file, inheritable=False)
                os.close(nowhere)
        self._socket.close()

    def answered(self) -> None:
        """Act on an answer of the server, in the thread that has asked."""

    def receive(self, connection: Connection) -> None:
        """Read what the server has sent unasked: here by a question."""
        self._ping(connection)

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
        self.answered()
        return answer

    def _listen(self, longest: timedelta) -> None:
        """Ping if it is time or the server has sent something, after another thread's question."""
        if not self._mutex.acquire(timeout=longest.total_seconds()):
            if self._is_overdue(self._asked, self._limits.answer):
                self.lose(_NO_ANSWER)
            return
        try:
            if self._has_input():
                self._ask(self.receive)
            elif self._is_overdue(self._heard, self._limits.pulse):
                self._ask(self._ping)
        except Exception:  # also what a handle_error listener of the application raises
            pass  # _ask() has noted the loss, and logged its reason
        finally:
            self._mutex.release()

    def _ping(self, connection: Connection) -> None:
        if self._backend(connection) != self._number and self._number is not None:
            raise LockLost("A different server process works for this connection now.")

    def _is_overdue(self, since: float | None, limit: timedelta) -> bool:
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
    connection.end()


# -- sockets ------------------------------------------------------------


def _readable(number: int, seconds: float) -> bool:
    if hasattr(select, "poll"):  # select() knows no numbers above 1023
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    return bool(select.select([number], [], [], seconds)[0])


# -- the lock of a connection -------------------------------------------


def lock_by_connection(
    database: Database,
    engine: Engine,
    name: str,
    deadline: Deadline,
    shared: SharedConnections[Any] | None,
) -> HeldLock | None:
    """Take a lock that belongs to a connection; None if the deadline came first."""
    connect = partial(WatchedConnection, engine, database.lock_limits, database.backend)
    connection = connect() if shared is None else shared.take(engine.pool, connect)
    try:
        key = connection.ask(partial(_own_key, database, name=name))
        connection.identify()
        if not _wait_for(database, connection, key, deadline):
            connection.close()
            return None
    except BaseException:
        connection.abandon()
        raise
    return LockOfConnection(name, connection, database, key)


def _own_key(database: Database, connection: Connection, *, name: str) -> Key:
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            f"This connection to {database} goes through a connection pooler, or to PGlite: the "
            "lock would belong to a server session that other clients use too. Give named locks "
            "an engine whose URL names the server itself, its own host and port."
        )
    keys = database.lock_keys(connection, [name])
    database.prepare_lock(connection)
    return keys[name]


def _wait_for(
    database: Database, connection: WatchedConnection, key: Key, deadline: Deadline
) -> bool:
    while True:
        seconds = deadline.left(database.lock_wait_at_once)
        if connection.ask(partial(database.take_lock, key=key, seconds=seconds)):
            return True
        if deadline.passed:
            return False


class LockOfConnection(HeldLock):
    """A lock that is ours as long as its connection lives."""

    def __init__(
        self, name: str, connection: WatchedConnection, database: Database, key: Key
    ) -> None:
        super().__init__(name)
        self._connection, self._database, self._key = connection, database, key
        connection.locks.append(name)
        self._abandon = weakref.finalize(self, connection.abandon)

    @property
    def inherited(self) -> bool:
        return self._connection.inherited

    @property
    def lost(self) -> bool:
        return self._connection.lost

    @property
    def sure(self) -> bool:
        return self._connection.sure

    def is_held(self) -> bool:
        return self._is_ours(self._database.lock_holding)

    def give_back(self) -> bool:
        self._connection.hurry()
        try:
            return self._is_ours(self._database.lock_giving)
        finally:
            self._abandon.detach()  # others may go on with the connection
            self._connection.locks.remove(self._name)
            self._connection.close()

    def _is_ours(self, question: TextClause) -> bool:
        ask = partial(Connection.scalar, statement=question, parameters={"key": self._key})
        ours = bool(self._connection.ask(ask))
        if not ours:
            self._connection.lose("the server no longer lists it as ours")
        return ours
