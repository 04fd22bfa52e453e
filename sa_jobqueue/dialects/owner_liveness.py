"""What an owner's life is told by: who the server is, and which connections it has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

IDENTITY_LENGTH = 16


class OwnerState(StrEnum):
    """What is known of an owner's life.

    Only ``DEAD`` is a reason to take its claims back at once. ``UNKNOWN`` waits for
    the lease.
    """

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Server:
    """The server and database that a connection leads to.

    Attributes:
        identity: 16 hexadecimal digits, the same on each connection to them.
        alone: whether what it does not know of is nowhere; not so on one node of
            a cluster, or on a standby.
    """

    identity: str
    alone: bool = True

    @classmethod
    def identified_by(cls, *parts: object, alone: bool = True) -> Server:
        """Make the identity out of all that tells a server and a database from others."""
        text = "\0".join(map(str, parts))
        return cls(hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_LENGTH], alone)


@dataclass(frozen=True)
class Process:
    """A connection as its server lists it.

    Attributes:
        id: the number that the server gave it, and may give again.
        started: what tells it from others of that number, as the server counts time:
            its own start, or where that is not known, the server's.
    """

    id: int
    started: int
