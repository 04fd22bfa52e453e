"""Whether an owner is alive, by its name.

::

    owner_state(session, email.owner)        # OwnerState.ALIVE, DEAD or UNKNOWN

The name of an :class:`Owner` is ``label~server~random``, that of a connection
``label~server~@id.started``. The middle part tells on which server and in which database
its lock or its connection is; only there can anybody tell whether it is alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from ..databases import Database, database_of
from ..databases.named_locks import IDENTITY_LENGTH, OwnerState, Process
from ..model.columns import OWNER_LENGTH
from ..sessions.writer import AnySession, session_of

__all__ = ["OwnerState", "is_connection_owner", "owner_state", "owner_states"]

#: Stands between the parts of a name, and in no name that a user gives.
SEPARATOR = "~"

RANDOM_LENGTH = 12
LABEL_LENGTH = OWNER_LENGTH - IDENTITY_LENGTH - RANDOM_LENGTH - 2 * len(SEPARATOR)

_NAME = re.compile(
    rf"[^~]+~(?P<identity>[0-9a-f]{{{IDENTITY_LENGTH}}})~"
    rf"(?:[0-9a-f]{{{RANDOM_LENGTH}}}|@(?P<id>[0-9]{{1,18}})\.(?P<started>[0-9]{{1,18}}))"
)


def lock_name(name: str) -> str:
    """Return the name of an owner's lock."""
    return f"sa_jobqueue.owner {name}"


def is_connection_owner(name: str) -> bool:
    """Tell whether :func:`sa_jobqueue.connection_owner` made a name.

    The death of such an owner does not prove that its process died: a pool closes
    connections, too.
    """
    parts = _NAME.fullmatch(name)
    return parts is not None and parts["id"] is not None


def owner_state(session: AnySession, name: str) -> OwnerState:
    """Tell whether an owner is alive, in the session's transaction.

    Args:
        session: a session of the database that the owner claims in.
        name: an owner as it stands in the ``owner`` column.

    Returns:
        ALIVE or DEAD where this server knows; UNKNOWN for plain strings, for owners of other
        servers and databases, on clusters, and where the user lacks privileges to see it.
    """
    name = str(name)
    return owner_states(session_of(session).connection(), [name])[name]


def owner_states(connection: Connection, names: Iterable[str]) -> dict[str, OwnerState]:
    """Tell of many owners whether they are alive.

    Plain names cost no round trip. The locks are looked up, not tried.
    """
    states = dict.fromkeys(names, OwnerState.UNKNOWN)
    parsed = {name: parts for name in states if (parts := _NAME.fullmatch(name))}
    if not parsed:
        return states
    database = database_of(connection)
    server = database.server_of(connection)
    if server is None:
        return states
    here = {name: parts for name, parts in parsed.items() if parts["identity"] == server.identity}
    known = _states_here(database, connection, here)
    if OwnerState.DEAD in known.values() and (
        not server.alone or database.through_pooler(connection)
    ):  # an owner that this server does not see may be alive elsewhere
        known = {name: state for name, state in known.items() if state is not OwnerState.DEAD}
    return states | known


def _states_here(
    database: Database, connection: Connection, names: Mapping[str, re.Match[str]]
) -> dict[str, OwnerState]:
    """Look up the owners of this server and database."""
    processes = {
        name: Process(int(parts["id"]), int(parts["started"]))
        for name, parts in names.items()
        if parts["id"] is not None
    }
    locks = {name: lock_name(name) for name in names if name not in processes}
    listed = database.process_states(connection, set(processes.values())) if processes else {}
    held = database.held_among(connection, locks.values()) if locks else set()
    return {name: listed[process] for name, process in processes.items()} | {
        name: OwnerState.ALIVE if lock in held else OwnerState.DEAD for name, lock in locks.items()
    }
