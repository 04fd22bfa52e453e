"""Facts that tell whether an owner is alive: the server it is on, and its connection there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

IDENTITY_LENGTH = 16


class OwnerState(StrEnum):
    """What is known about whether an owner is alive.

    Only ``DEAD`` is a reason to reap its claims at once. With ``UNKNOWN`` the lease decides.
    """

    ALIVE = "alive"
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
        return cls(hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_LENGTH], alone)


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
