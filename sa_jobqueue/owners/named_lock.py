"""Named locks: one holder for each name, across processes and machines.

::

    with named_lock(engine, "nightly report", timeout=timedelta(0)) as lock:
        for part in report:
            lock.check()             # LockLost, if the connection died meanwhile
            write(part)

A lock has a connection of its own, outside of the engine's pool, and lasts as long
as this connection: when a process is killed, its locks are free at once. A lock is not
re-entrant. docs/owners.md tells what holds on which database.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from sqlalchemy import Connection, Engine

from ..ages import duration_text
from ..databases import Database, database_of, database_of_engine
from ..databases.connections import SharedConnections, call_for
from ..databases.named_locks import Deadline, HeldLock, Holder
from ..errors import ArgumentError, LockLost, LockNotHeld, LockTimeout

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["Holder", "NamedLock", "lock_holder", "named_lock"]

log = logging.getLogger("sa_jobqueue.owners.named_lock")

AnyEngine: TypeAlias = Union[Engine, "AsyncEngine"]


def named_lock(engine: AnyEngine, name: str, timeout: timedelta | None = None) -> NamedLock:
    """Make a lock that has one holder at a time, across processes and machines.

    Nothing is locked before ``with`` or :meth:`NamedLock.acquire`.

    Args:
        engine: of the database that keeps the lock, and not through a connection pooler. The
            methods of a lock block also with an AsyncEngine: in a coroutine call them by
            ``await asyncio.to_thread(lock.acquire)``.
        name: any text. Locks of two databases never meet.
        timeout: how long to wait for the lock; ``timedelta(0)`` tries once,
            None waits without end.

    Raises:
        ArgumentError: the name is no text or empty, the timeout is negative, or `engine` is none.
    """
    return NamedLock(engine, name, timeout)


def lock_holder(connection: Connection, name: str) -> Holder | None:
    """Return who has a lock, on any connection of its database, without trying to take it."""
    return database_of(connection).lock_holder(connection, _checked_name(name))


class NamedLock:
    """A named lock; :func:`named_lock` makes it.

    As a context manager it raises LockTimeout where acquire() returns False, and
    LockLost at its end if the lock was lost meanwhile.

    Attributes:
        name: as it was given.
    """

    # Where locks have a connection in common; None: this one has its own.
    shared: SharedConnections[Any] | None = None

    def __init__(self, engine: AnyEngine, name: str, timeout: timedelta | None = None) -> None:
        self.engine = checked_engine(engine, "A named lock")
        self.name = _checked_name(name)
        self.timeout = _checked_timeout(timeout)
        self._lock: HeldLock | None = None

    def acquire(self, timeout: timedelta | EllipsisType | None = ...) -> bool:
        """Take the lock, waiting for it if need be; tell whether it was taken.

        Args:
            timeout: how long to wait: ``timedelta(0)`` tries once, None waits
                without end. Left out, the timeout of the constructor counts.

        Raises:
            UnsupportedDatabase: this database has no named locks, or this connection
                to it cannot hold them.
            DBAPIError: the connection failed.
        """
        wait = self.timeout if isinstance(timeout, EllipsisType) else _checked_timeout(timeout)
        deadline = Deadline(wait)
        taken = self._database().acquire_lock(self.engine, self.name, deadline, self.shared)
        if taken is None:
            return False
        self._lock = taken
        log.debug("took the lock %r", self.name)
        return True

    def release(self) -> None:
        """Release the lock.

        Raises:
            LockNotHeld: it is not held here. The message says who has it.
            LockLost: its connection died meanwhile.
        """
        lock = self._forget()
        if lock is None:
            raise self._not_held()
        lock.release()
        log.debug("released the lock %r", self.name)

    def check(self) -> None:
        """Ask the database whether the lock is still held here: one round trip.

        Raises:
            LockNotHeld: it is not held here. The message says who has it.
            LockLost: its connection died meanwhile.
        """
        lock = self._current()
        if lock is None:
            raise self._not_held()
        lock.check()

    def holder(self) -> Holder | None:
        """Return who has the lock now, on any connection; None if nobody has."""
        return self._database().lock_holder_by_engine(self.engine, self.name)

    @property
    def held(self) -> bool:
        """Whether the lock was taken here, and is not known to be lost."""
        lock = self._current()
        return lock is not None and not lock.lost

    @property
    def lost(self) -> bool:
        """Whether the lock was taken here and lost, as far as is known without asking."""
        lock = self._current()
        return lock is not None and lock.lost

    @property
    def sure(self) -> bool:
        """Whether the lock is held here, as far as is known without waiting.

        Where this is False, ``held`` asks the server.
        """
        lock = self._current()
        return lock is not None and lock.sure

    def __enter__(self) -> NamedLock:
        if not self.acquire():
            assert self.timeout is not None  # else it waits for ever
            within = duration_text(self.timeout)
            raise LockTimeout(
                f"The lock {self.name!r} was not free within {within}: {self._whose()}."
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except (LockLost, LockNotHeld):
            # An error from the block is the reason why the work has ended; the loss came later.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<NamedLock {self.name!r}, {'held' if self.held else 'not held'}>"

    def _database(self) -> Database:
        return call_for(self.engine, lambda: database_of_engine(self.engine))

    def _current(self) -> HeldLock | None:
        lock = self._lock
        return None if lock is None or lock.inherited else lock

    def _forget(self) -> HeldLock | None:
        lock, self._lock = self._current(), None
        return lock

    def _not_held(self) -> LockNotHeld:
        return LockNotHeld(f"The lock {self.name!r} is not held here: {self._whose()}.")

    def _whose(self) -> str:
        holder = self.holder()
        return "nobody holds it" if holder is None else f"{holder} has it"


def checked_engine(engine: AnyEngine, user: str) -> Engine:
    """Return the Engine that connects, also behind an AsyncEngine.

    Args:
        user: who needs the engine, for the error message.

    Raises:
        ArgumentError: it is no engine.
    """
    found = getattr(engine, "sync_engine", engine)
    if not isinstance(found, Engine):
        raise ArgumentError(f"{user} needs an Engine or an AsyncEngine, not {engine!r}.")
    return found


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"The name of a lock is a text that is not empty, not {name!r}.")
    return name


def _checked_timeout(timeout: timedelta | None) -> timedelta | None:
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta) or timeout < timedelta(0):
        raise ArgumentError(
            f"How long to wait for a lock is a timedelta that is not negative, not {timeout!r}: "
            "timedelta(0) tries once, None waits without end."
        )
    return timeout
