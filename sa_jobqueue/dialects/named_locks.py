"""Named locks, as one kind of database keeps them.

:mod:`sa_jobqueue.owners.named_lock` is what users call. Here is what it asks of a database:
:class:`ServerLocks` takes a lock and tells who has it, :class:`HeldLock` is a lock
that was taken. A database has them in its ``named_locks()``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from sqlalchemy import Connection, Engine

from ..errors import LockLost


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a lock, as far as the database tells us.

    Attributes:
        process: the server's number of the holder's connection; on SQLite the
            holder's process id.
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
    """How long a lock may still be waited for."""

    def __init__(self, timeout: timedelta | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout.total_seconds()

    def left(self, at_most: float) -> float:
        """Return the seconds that are left, but no more than one waits at a time."""
        if self._end is None:
            return at_most
        return min(at_most, max(0.0, self._end - time.monotonic()))

    @property
    def passed(self) -> bool:
        """Tell whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end


class HeldLock(ABC):
    """A lock that was taken, until it is given back or lost.

    One that is dropped without a release is given back, without waiting for anything.
    """

    @property
    @abstractmethod
    def inherited(self) -> bool:
        """Whether this is a copy in a forked child: the lock is its parent's."""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether it is known to be lost, without asking the server."""

    @abstractmethod
    def check(self) -> None:
        """Ask whether the lock is still ours.

        Raises:
            LockLost: it is not.
        """

    @abstractmethod
    def release(self) -> None:
        """Give it back.

        Raises:
            LockLost: it was not ours any more.
        """


class ServerLocks(ABC):
    """How one kind of database locks a name."""

    @abstractmethod
    def acquire(self, engine: Engine, name: str, deadline: Deadline) -> HeldLock | None:
        """Take a lock, or wait for it; None when the time was up."""

    @abstractmethod
    def holder(self, connection: Connection, name: str) -> Holder | None:
        """Read who has a lock, without trying to take it."""

    @abstractmethod
    def holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        """Read who has a lock, on a connection that is not of the engine's pool."""


def lost(name: str) -> LockLost:
    """Make the error that says that a lock was lost."""
    return LockLost(f"The lock {name!r} was lost; somebody else may have it by now.")


def digest(*parts: str) -> bytes:
    """Hash some texts to 32 bytes; where one ends and the next begins counts."""
    told = sha256(b"sa_jobqueue named lock")
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        told.update(len(encoded).to_bytes(8, "big") + encoded)
    return told.digest()


def slug(name: str, length: int) -> str:
    """Return what is readable of a name: ASCII letters, digits and dashes."""
    kept = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name)
    return kept.strip("-")[:length].lower()
