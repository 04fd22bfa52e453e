"""Named locks: what a database must provide, and what the three servers share.

Users call :mod:`sa_jobqueue.owners.named_lock`, which asks the database's
``named_locks()``: a :class:`NamedLocks` takes a lock and tells who has it, and a
:class:`HeldLock` is a lock that was taken. Where a lock belongs to a connection, as on
PostgreSQL, MySQL and MariaDB, subclass :class:`ConnectionLocks`.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import ClassVar

from sqlalchemy import Connection, Engine

from ..errors import LockLost, UnsupportedDatabase
from .capabilities import Capabilities
from .connections import call_for, connected_apart
from .watched_connection import Limits, WatchedConnection


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a lock, as far as the database tells us.

    Attributes:
        process: the number that the server gave to the holder's connection; on SQLite
            the holder's process id.
        user: the database user.
        host: where the holder runs.
        program: what PostgreSQL knows as application_name.
    """

    process: int | None = None
    user: str | None = None
    host: str | None = None
    program: str | None = None

    def __str__(self) -> str:
        parts = ["somebody" if self.process is None else f"process {self.process}"]
        for word, value in (("of user", self.user), ("on", self.host), ("in", self.program)):
            if value:
                parts.append(f"{word} {value}")
        return " ".join(parts)


class Deadline:
    """Until when to wait for a lock; without a timeout, for ever."""

    def __init__(self, timeout: timedelta | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout.total_seconds()

    def left(self, at_most: float) -> float:
        """Return the seconds that are left, but no more than the given maximum."""
        if self._end is None:
            return at_most
        return min(at_most, max(0.0, self._end - time.monotonic()))

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end


class HeldLock(ABC):
    """A lock that was taken, until it is given back or lost.

    A HeldLock that is garbage-collected without a release gives the lock back, without
    waiting for anything.
    """

    @property
    @abstractmethod
    def inherited(self) -> bool:
        """Whether this is the copy in a forked child: the lock is its parent's."""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether the lock is known to be lost, without asking the server."""

    @property
    def sure(self) -> bool:
        """Whether the lock is ours, by a look that never waits; if not, ``lost`` looks closer."""
        return not self.lost

    @abstractmethod
    def check(self) -> None:
        """Ask whether the lock is still ours.

        Raises:
            LockLost: it is not.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the lock back.

        Raises:
            LockLost: it was not ours any more.
        """


class NamedLocks(ABC):
    """How one kind of database locks a name."""

    @abstractmethod
    def acquire(self, engine: Engine, name: str, deadline: Deadline) -> HeldLock | None:
        """Take a lock, waiting until the deadline; None if somebody else had it until then."""

    @abstractmethod
    def holder(self, connection: Connection, name: str) -> Holder | None:
        """Tell who has a lock, without trying to take it; None: nobody."""

    @abstractmethod
    def holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        """Tell who has a lock, by a connection that is not of the engine's pool."""

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        """Return which of these names somebody has locked."""
        return {name for name in names if self.holder(connection, name) is not None}


# -- locks that belong to a connection ----------------------------------

#: What a server calls a lock: a number or a text.
Key = int | str


class ConnectionLocks(NamedLocks):
    """Locks that a server frees when their connection ends.

    Attributes:
        limits: how long a silent holder keeps its lock.
        wait: seconds of each wait that the server is asked for. Ctrl-C is noticed only
            between two waits, and drivers limit how long they read.
    """

    limits: ClassVar[Limits]
    wait: ClassVar[float]

    def __init__(self, database: Capabilities) -> None:
        self.database = database

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """Set how long the server keeps a silent connection, and lift its other time limits."""

    @abstractmethod
    def key(self, connection: Connection, name: str) -> Key:
        """Return what the server calls this lock."""

    @abstractmethod
    def take(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        """Take the lock, waiting at most this long; tell whether we have it now."""

    @abstractmethod
    def give(self, connection: Connection, *, key: Key) -> bool:
        """Give the lock back; tell whether we had it."""

    @abstractmethod
    def holds(self, connection: Connection, *, key: Key) -> bool:
        """Ask whether this very connection holds the lock."""

    @abstractmethod
    def find_holder(self, connection: Connection, key: Key) -> Holder | None:
        """Tell who has the lock; None: nobody."""

    def acquire(self, engine: Engine, name: str, deadline: Deadline) -> HeldLock | None:
        connection = WatchedConnection(engine, self.limits, self.database.backend)
        try:
            key = connection.ask(partial(self._prepared_key, name=name))
            connection.identify()
            if not self._taken(connection, key, deadline):
                connection.close()
                return None
        except BaseException:
            connection.abandon()
            raise
        return _HeldByConnection(self, connection, key, name)

    def holder(self, connection: Connection, name: str) -> Holder | None:
        return self.find_holder(connection, self.key(connection, name))

    def holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        def ask() -> Holder | None:
            with connected_apart(engine) as connection:
                return self.holder(connection, name)

        return call_for(engine, ask)

    def _prepared_key(self, connection: Connection, *, name: str) -> Key:
        if self.database.through_pooler(connection):
            raise UnsupportedDatabase(
                f"This connection to {self.database} goes through a connection pooler: the lock "
                "would belong to a server session that other clients use too. Give named locks "
                "an engine whose URL names the server itself, its own host and port."
            )
        self.prepare(connection)
        return self.key(connection, name)

    def _taken(self, connection: WatchedConnection, key: Key, deadline: Deadline) -> bool:
        while True:
            seconds = deadline.left(self.wait)
            if connection.ask(partial(self.take, key=key, seconds=seconds)):
                return True
            if deadline.passed:
                return False


class _HeldByConnection(HeldLock):
    """A lock that is ours as long as its connection lives."""

    def __init__(
        self, locks: ConnectionLocks, connection: WatchedConnection, key: Key, name: str
    ) -> None:
        self._locks = locks
        self._connection = connection
        self._key = key
        self._name = name
        connection.lock = name
        weakref.finalize(self, connection.abandon)

    @property
    def inherited(self) -> bool:
        return self._connection.inherited

    @property
    def lost(self) -> bool:
        return self._connection.lost

    @property
    def sure(self) -> bool:
        return self._connection.sure

    def check(self) -> None:
        self._insist(self._locks.holds)

    def release(self) -> None:
        self._connection.hurry()
        try:
            self._insist(self._locks.give)
        finally:
            self._connection.close()

    def _insist(self, ours: Callable[..., bool]) -> None:
        try:
            held = self._connection.ask(partial(ours, key=self._key))
        except Exception as error:  # also what a handle_error listener of the application raises
            raise lock_lost(self._name) from error
        if not held:
            self._connection.lose("the server no longer lists it as ours")
            raise lock_lost(self._name)


# -- names --------------------------------------------------------------


def lock_lost(name: str) -> LockLost:
    """Return the error for a lock that was lost."""
    return LockLost(f"The lock {name!r} was lost; somebody else may have it by now.")


def digest(*parts: str) -> bytes:
    """Hash texts to 32 bytes; ("ab", "c") and ("a", "bc") have different hashes."""
    hashed = sha256(b"sa_jobqueue named lock")
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)
    return hashed.digest()


def slug(name: str, length: int) -> str:
    """Return the readable part of a name: ASCII letters, digits and dashes."""
    kept = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name)
    return kept.strip("-")[:length].lower()
