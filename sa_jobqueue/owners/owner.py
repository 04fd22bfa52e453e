"""Owners: who claims, and whether they are still alive.

::

    with Owner(engine) as owner:
        emails = claim(session, Email, owner=owner, limit=100)

    owner_state(session, email.owner)        # OwnerState.ALIVE, DEAD or UNKNOWN

An Owner holds a named lock for as long as its process lives: a free lock means
that the owner is dead, and that its claims may be taken back at once. The name
says on which server and in which database the lock is. Elsewhere nobody can tell,
nor of a plain string: there the lease decides. ``docs/owners.md`` has the limits.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from ..dialects import Database, database_of
from ..dialects.owner_liveness import IDENTITY_LENGTH, OwnerState, Process, Server
from ..errors import ArgumentError, LockLost, LockNotHeld, LockTimeout, UnsupportedDatabase
from ..model.mixins import OWNER_LENGTH
from ..sessions.writer import AnySession, session_of
from .named_lock import NamedLock, checked_engine

__all__ = [
    "ConnectionOwner",
    "Owner",
    "OwnerState",
    "connection_owner",
    "is_connection_owner",
    "owner_state",
    "owner_states",
]

log = logging.getLogger("sa_jobqueue.owner")

#: Stands between the parts of a name, and in no name that a user gives.
SEPARATOR = "~"

RANDOM_LENGTH = 12
LABEL_LENGTH = OWNER_LENGTH - IDENTITY_LENGTH - RANDOM_LENGTH - 2 * len(SEPARATOR)

_NAME = re.compile(
    rf"[^~]+~(?P<identity>[0-9a-f]{{{IDENTITY_LENGTH}}})~"
    rf"(?:[0-9a-f]{{{RANDOM_LENGTH}}}|@(?P<id>[0-9]{{1,18}})\.(?P<started>[0-9]{{1,18}}))"
)


class Owner:
    """A name to claim under, whose death others notice.

    For a process, or for a thread: each opens its own, and closes it when it
    claims no more. Open it before the first claim, outside of any transaction:
    it takes a connection of its own.

    Args:
        engine: the one that the claims are made with.
        name: what the owner's name begins with, at most 34 characters and
            without a ``~``; by default the name of the host.

    Raises:
        ArgumentError: a name that cannot be.
    """

    def __init__(self, engine: Engine, name: str | None = None) -> None:
        if not isinstance(engine, Engine):
            raise ArgumentError(
                f"an Owner opens connections, and needs an Engine, not {type(engine).__name__}; "
                "beside an AsyncEngine, make one of a synchronous driver for the same database"
            )
        self.engine = engine
        self.label = _host_label(LABEL_LENGTH) if name is None else _checked_label(name)
        self._held: _Held | None = None
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        return f"<Owner {self._held.name if self._held else self.label + ', not open'}>"

    def __enter__(self) -> Owner:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Take a name and its lock.

        Raises:
            ArgumentError: it is open already.
            UnsupportedDatabase: behind a pooler, where a lock tells nothing, or
                the driver is an async one.
        """
        checked_engine(self.engine)
        with self._one_at_a_time:
            if self._held is not None:
                raise ArgumentError(f"{self!r} is open already; make another Owner")
            self._held = self._taken()

    def close(self) -> None:
        """Give the lock back: from now on this owner is dead."""
        if self._inherited:
            return
        with self._one_at_a_time:
            held, self._held = self._held, None
        if held is not None:
            _let_go(held)

    @property
    def name(self) -> str:
        """The name to claim under, up to 64 characters; costs no round trip.

        Raises:
            LockLost: the lock was lost, and others take this owner's claims by now.
                Raised once; from then on there is another name, with a lock.
            LockNotHeld: not open.
        """
        if self._inherited:
            raise LockNotHeld(
                f"{self!r} was opened before this process was forked, and lives with the other "
                "one; open another here: with Owner(engine) as owner:"
            )
        with self._one_at_a_time:
            held = self._held
            if held is None:
                raise LockNotHeld("this owner is not open; use: with Owner(engine) as owner:")
            if not held.lock.lost:
                return held.name
            self._held = self._taken()
        log.warning("%s has lost its lock; from now on it is %s", held.name, self._held.name)
        _let_go(held)
        raise LockLost(
            f"the owner {held.name!r} has lost its lock: its connection died, and others may take "
            f"its claims. It goes on as {self._held.name!r}; roll back, and claim again"
        )

    @property
    def _inherited(self) -> bool:
        """Whether this is a copy in a forked child: the lock is its parent's."""
        # Asked before the thread lock is taken, which may be copied as held.
        return self._held is not None and self._held.process != os.getpid()

    def _taken(self) -> _Held:
        """Take a new name and its lock, and see that others see it."""
        with _beside_pool(self.engine) as connection:
            _check_no_pooler(database_of(connection), connection)
            server = _server_of_owners(connection)
        name = _joined(self.label, server, secrets.token_hex(RANDOM_LENGTH // 2))
        lock = NamedLock(self.engine, lock_name(name))
        if not lock.acquire(timedelta(0)):
            raise LockTimeout(f"somebody holds the lock of {name!r}, which was just made up")
        held = _Held(name, lock, os.getpid())
        try:
            self._check_seen(held, server)
        except BaseException:
            _let_go(held)
            raise
        return held

    def _check_seen(self, held: _Held, server: Server) -> None:
        with _beside_pool(self.engine) as connection:
            state = owner_states(connection, [held.name])[held.name]
        if server.alone and state is not OwnerState.ALIVE:
            raise UnsupportedDatabase(
                "the connections of this engine lead to different servers or databases: an owner "
                "that lives on one would look dead on another. Give the Owner an engine that leads "
                "to one server only, without a load balancer in between, or claim with a plain "
                "owner='...'"
            )


@dataclass(frozen=True)
class _Held:
    """A name with its lock, and the process that has them."""

    name: str
    lock: NamedLock
    process: int


def _beside_pool(engine: Engine) -> Connection:
    """Connect without the engine's pool: a session may have its last connection."""
    # Still this engine's, since a database in memory is known by its pool.
    connection = Connection(engine, engine.pool.recreate().connect())
    connection.detach()
    return connection


def lock_name(name: str) -> str:
    """Return the name of an owner's lock."""
    return f"sa_jobqueue.owner {name}"


def _let_go(held: _Held) -> None:
    with suppress(LockLost):  # told when the name was asked for, or of no interest any more
        held.lock.release()


def _check_no_pooler(database: Database, connection: Connection) -> None:
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            "an owner lives as long as its connection to the server, and a pooler stands in "
            "between; give an engine that leads to the server itself, or claim with a plain "
            "owner='...', whose claims the lease sets free"
        )


def _server_of_owners(connection: Connection) -> Server:
    """Return the server, if it can tell of owners."""
    database = database_of(connection)
    server = database.server_of(connection)
    if server is None:
        raise UnsupportedDatabase(
            f"{database} does not tell which owners are alive{database.to_know_owners}. Or claim "
            "with a plain owner='...', whose claims the lease sets free"
        )
    return server


# -- names --------------------------------------------------------------


def _checked_label(name: str) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"the name of an owner is a str, not {type(name).__name__}: {name!r}")
    if not 1 <= len(name) <= LABEL_LENGTH:
        raise ArgumentError(
            f"the name of an Owner has 1 to {LABEL_LENGTH} characters, since more are put behind "
            f"it, and this one has {len(name)}: {name!r}; shorten it"
        )
    if SEPARATOR in name:
        raise ArgumentError(f"'~' is reserved in owners: {name!r}; use another character")
    return name


def _host_label(length: int) -> str:
    return socket.gethostname().replace(SEPARATOR, "-")[:length] or "host"


def _joined(label: str, server: Server, end: str) -> str:
    return SEPARATOR.join((label, server.identity, end))


def is_connection_owner(name: str) -> bool:
    """Tell whether a name was made by :func:`connection_owner`.

    The death of such an owner is no proof that its process died: a pool closes
    connections, too.
    """
    found = _NAME.fullmatch(name)
    return found is not None and found["id"] is not None


# -- connections as owners ----------------------------------------------


class ConnectionOwner(str):
    """The name of a server's connection, made by :func:`connection_owner`."""

    __slots__ = ()


def connection_owner(session: AnySession) -> ConnectionOwner:
    """Make an owner of the session's own connection to the server.

    It costs no further connection. It is alive for as long as the server lists this
    connection. So the session keeps it until its jobs are finished::

        with engine.connect() as connection, Session(connection) as session:
            emails = claim(session, Email, owner=connection_owner(session))

    Returns:
        A str, good for the claims of this session while its connection lasts.

    Raises:
        ArgumentError: the session is not bound to one connection.
        UnsupportedDatabase: behind a pooler, or the server has no list of its
            connections, or hides this one in it.
    """
    session = session_of(session)
    _check_one_connection(session)
    connection = session.connection()
    database = database_of(connection)
    _check_no_pooler(database, connection)
    process, server = database.own_process(connection), database.server_of(connection)
    if process is None or server is None:
        raise UnsupportedDatabase(
            f"{database} does not say which of its connections this is; use Owner(engine)"
        )
    end = f"@{process.id}.{process.started}"
    length = OWNER_LENGTH - IDENTITY_LENGTH - len(end) - 2 * len(SEPARATOR)
    return ConnectionOwner(_joined(_host_label(length), server, end))


def _check_one_connection(session: Session) -> None:
    try:
        bind = session.get_bind()
    except UnboundExecutionError:
        bind = None
    if not isinstance(bind, Connection):
        raise ArgumentError(
            "connection_owner() needs a session on one connection, which this one may change "
            "with every transaction: with engine.connect() as connection, Session(connection) "
            "as session: ... Or use Owner(engine)"
        )


# -- states -------------------------------------------------------------


def owner_state(session: AnySession, name: str) -> OwnerState:
    """Tell whether an owner is alive, in the session's transaction.

    Args:
        session: a session of the database that the owner claims in.
        name: an owner as it stands in the ``owner`` column.

    Returns:
        ALIVE or DEAD where this server knows; UNKNOWN for plain strings, on other
        servers and databases, on clusters, and where privileges hide it.
    """
    name = str(name)
    return owner_states(session_of(session).connection(), [name])[name]


def owner_states(connection: Connection, names: Iterable[str]) -> dict[str, OwnerState]:
    """Tell of many owners whether they are alive.

    Plain names cost no round trip. The locks are read, and never tried.
    """
    states = dict.fromkeys(names, OwnerState.UNKNOWN)
    parsed = {name: found for name in states if (found := _NAME.fullmatch(name))}
    if not parsed:
        return states
    database = database_of(connection)
    server = database.server_of(connection)
    if server is None:
        return states
    here = {name: found for name, found in parsed.items() if found["identity"] == server.identity}
    told = _states_here(database, connection, here)
    if OwnerState.DEAD in told.values() and not _knows_death(database, connection, server):
        told = {name: state for name, state in told.items() if state is not OwnerState.DEAD}
    return states | told


def _knows_death(database: Database, connection: Connection, server: Server) -> bool:
    """Tell whether what is not seen here is nowhere."""
    return server.alone and not database.through_pooler(connection)


def _states_here(
    database: Database, connection: Connection, names: Mapping[str, re.Match[str]]
) -> dict[str, OwnerState]:
    """Look up the owners of this very server and database."""
    processes = {
        name: Process(int(found["id"]), int(found["started"]))
        for name, found in names.items()
        if found["id"] is not None
    }
    locks = {name: lock_name(name) for name in names if name not in processes}
    listed = database.process_states(connection, set(processes.values())) if processes else {}
    held = database.named_locks().held_among(connection, locks.values()) if locks else set()
    return {name: listed[process] for name, process in processes.items()} | {
        name: OwnerState.ALIVE if lock in held else OwnerState.DEAD for name, lock in locks.items()
    }
