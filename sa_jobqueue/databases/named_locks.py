"""Named locks: a lock that was taken, who has it, and what tells whether its holder lives.

Users call :mod:`sa_jobqueue.owners.named_lock`, which asks the database's ``acquire_lock()``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from typing import TypeAlias

from ..errors import LockLost

#: What a server calls a lock: a number or a text.
Key: TypeAlias = int | str


@dataclass(frozen=True)
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

    def __init__(self, name: str) -> None:
        self._name = name

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

    def check(self) -> None:
        """Ask whether the lock is still ours.

        Raises:
            LockLost: it is not.
        """
        self._insist(self.is_held)

    def release(self) -> None:
        """Give the lock back.

        Raises:
            LockLost: it was not ours any more.
        """
        self._insist(self.give_back)

    @abstractmethod
    def is_held(self) -> bool:
        """Ask whether the lock is ours."""

    @abstractmethod
    def give_back(self) -> bool:
        """Give the lock back; tell whether it was ours."""

    def _insist(self, ours: Callable[[], bool]) -> None:
        lost = LockLost(f"The lock {self._name!r} was lost; somebody else may have it by now.")
        try:
            held = ours()
        except Exception as error:  # also what a handle_error listener of the application raises
            raise lost from error
        if not held:
            raise lost


# -- names --------------------------------------------------------------


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


# -- servers and their connections --------------------------------------

IDENTITY_LENGTH = 16


class OwnerState(StrEnum):
    """What is known about whether an owner is alive.

    Only ``DEAD`` is a reason to reap its claims at once. With ``UNKNOWN`` the lease decides.
    ``STUCK`` is what a worker tells of itself: its lock alone would call it alive.
    """

    ALIVE = "alive"
    STUCK = "stuck"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Server:
    """The server and database that a connection leads to.

    Attributes:
        identity: 16 hexadecimal digits, the same on each connection to this server
            and database.
        alone: whether a connection that this server does not list is closed. False on a
            node of a cluster and on a standby: another node may have the connection.
    """

    identity: str
    alone: bool = True

    @classmethod
    def identified_by(cls, *parts: object, alone: bool = True) -> Server:
        """Hash everything that distinguishes this server and database into its identity."""
        text = "\0".join(map(str, parts))
        return cls(sha256(text.encode()).hexdigest()[:IDENTITY_LENGTH], alone)


@dataclass(frozen=True)
class Process:
    """A connection as its server lists it.

    Attributes:
        id: the number that the server gave it; servers use numbers again.
        started: what distinguishes connections with the same number, in the server's
            own units: when the connection began, or where that is unknown, when the
            server was started.
    """

    id: int
    started: int
