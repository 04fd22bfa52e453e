"""Owners: names to claim under, whose death others notice.

::

    with Owner(engine) as owner:
        emails = claim(session, Email, owner=owner, limit=100)

An Owner holds a named lock for as long as its process lives. A free lock means that the
owner is dead, and that its claims may be reaped at once. The owner's name tells on
which server and in which database the lock is; ``alive.py`` reads it. On other servers
nobody can tell whether the owner is alive; there the lease decides, as it does for a
plain string. docs/owners.md has the limits.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from ..databases import Database, database_of
from ..databases.connections import SharedConnections, call_for
from ..databases.named_locks import IDENTITY_LENGTH, OwnerState, Server
from ..errors import ArgumentError, LockLost, LockNotHeld, LockTimeout, UnsupportedDatabase
from ..model.columns import OWNER_LENGTH
from ..sessions.transactions import connected_outside_pool
from ..sessions.writer import AnySession, session_of
from .alive import LABEL_LENGTH, RANDOM_LENGTH, SEPARATOR, lock_name, owner_states
from .named_lock import AnyEngine, NamedLock, checked_engine

log = logging.getLogger("sa_jobqueue.owner")

R = TypeVar("R")


class Owner:
    """A name to claim under, whose death others notice.

    Each process, or each thread, opens an Owner of its own, and closes it when it
    claims no more. Open it before the first claim, outside of any transaction: it
    takes a connection of its own.

    Args:
        engine: the engine that the claims are made with. With an AsyncEngine open() and close()
            block as well: in a coroutine call them by ``await asyncio.to_thread(owner.open)``.
        name: what the owner's name begins with, at most 34 characters and
            without a ``~``; by default the name of the host.

    Raises:
        ArgumentError: the name is empty, too long, or has a ``~`` in it.
    """

    # Where owners have a connection in common; None: this one has its own.
    shared: SharedConnections[Any] | None = None

    def __init__(self, engine: AnyEngine, name: str | None = None) -> None:
        self.engine = checked_engine(engine, "an Owner")
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
            UnsupportedDatabase: a pooler is in between, so that a lock proves
                nothing.
        """
        with self._one_at_a_time:
            if self._held is not None:
                raise ArgumentError(f"{self!r} is open already; make another Owner")
            self._held = self._take()

    def close(self) -> None:
        """Release the lock: from now on this owner is dead."""
        if self._inherited:
            return
        with self._one_at_a_time:
            held, self._held = self._held, None
        if held is not None:
            _release(held)

    @property
    def name(self) -> str:
        """The name to claim under, up to 64 characters; reading it costs no round trip.

        Raises:
            LockLost: the lock was lost, and others may have taken this owner's claims.
                Raised once; from then on the owner has another name, with a new lock.
            LockNotHeld: the owner is not open.
        """
        if self._inherited:
            raise LockNotHeld(
                f"{self!r} was opened before this process was forked, and belongs to the parent "
                "process; open another here: with Owner(engine) as owner:"
            )
        with self._one_at_a_time:
            held = self._held
            if held is None:
                raise LockNotHeld("this owner is not open; use: with Owner(engine) as owner:")
            if not held.lock.lost:
                return held.name
            self._held = self._take()
        log.warning("%s has lost its lock; its name is now %s", held.name, self._held.name)
        _release(held)
        raise LockLost(
            f"the owner {held.name!r} has lost its lock: its connection died, and others may take "
            f"its claims. Its name is now {self._held.name!r}; roll back, and claim again"
        )

    @property
    def known_name(self) -> ConnectionOwner:
        """The name that it had last, without a look at the lock.

        Raises:
            LockNotHeld: the owner is not open.
        """
        held = self._held
        return ConnectionOwner(self.name if held is None else held.name)

    @property
    def sure(self) -> bool:
        """Whether the lock is held, as far as is known without waiting.

        Where this is False, ``name`` looks closer.
        """
        held = self._held
        return held is not None and held.lock.sure  # which the lock of a parent process never is

    @property
    def _inherited(self) -> bool:
        """Whether this is a copy in a forked child: the lock is its parent's."""
        # Ask before taking the thread lock, which a fork may have copied while it was held.
        return self._held is not None and self._held.process != os.getpid()

    def _take(self) -> _Held:
        """Take a new name and its lock, and check that other connections see the lock."""
        server = self._ask(_checked_server)
        name = _full_name(self.label, server, secrets.token_hex(RANDOM_LENGTH // 2))
        lock = NamedLock(self.engine, lock_name(name))
        lock.shared = self.shared
        if not lock.acquire(timedelta(0)):
            raise LockTimeout(
                f"somebody else holds the lock of the new, random name {name!r}: try again"
            )
        held = _Held(name, lock, os.getpid())
        try:
            self._check_seen(held, server)
        except BaseException:
            _release(held)
            raise
        return held

    def _check_seen(self, held: _Held, server: Server) -> None:
        state = self._ask(lambda connection: owner_states(connection, [held.name])[held.name])
        if server.alone and state is not OwnerState.ALIVE:
            held.lock.check()  # LockLost, if its connection died between the two looks
            raise UnsupportedDatabase(
                "the connections of this engine lead to different servers or databases: an owner "
                "that is alive on one of them would look dead on another. Give the Owner an engine "
                "that connects to one server only, without a load balancer, or claim with a plain "
                "owner='...'"
            )

    def _ask(self, question: Callable[[Connection], R]) -> R:
        """Ask the server something, by another connection than that of the lock."""

        def ask() -> R:
            with connected_outside_pool(self.engine) as connection:
                return question(connection)

        return call_for(self.engine, ask)


@dataclass(frozen=True)
class _Held:
    """A name with its lock, and the id of the process that has them."""

    name: str
    lock: NamedLock
    process: int


def _release(held: _Held) -> None:
    with suppress(LockLost):  # .name has raised it, or nobody will claim any more
        held.lock.release()


def _check_no_pooler(database: Database, connection: Connection) -> None:
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            "an owner needs a session of its own on the server, and this engine connects "
            "through a pooler, or to PGlite. Give an engine that connects to the server itself, or "
            "claim with a plain owner='...', whose claims are reaped when the lease is over"
        )


def _checked_server(connection: Connection) -> Server:
    """Return the server; refuse one that does not tell which owners are alive, and a pooler."""
    database = database_of(connection)
    _check_no_pooler(database, connection)
    server = database.server_of(connection)
    if server is None:
        raise UnsupportedDatabase(
            f"{database} does not tell which owners are alive{database.to_know_owners}. Or claim "
            "with a plain owner='...', whose claims are reaped when the lease is over"
        )
    return server


# -- names --------------------------------------------------------------


def _checked_label(name: str) -> str:
    if not isinstance(name, str):
        raise ArgumentError(f"the name of an owner is a str, not {type(name).__name__}: {name!r}")
    if not 1 <= len(name) <= LABEL_LENGTH:
        raise ArgumentError(
            f"the name of an Owner has 1 to {LABEL_LENGTH} characters, since more are appended, "
            f"and this name has {len(name)}: {name!r}; shorten it"
        )
    if SEPARATOR in name:
        raise ArgumentError(f"'~' is reserved in owners: {name!r}; use another character")
    return name


def _host_label(length: int) -> str:
    return socket.gethostname().replace(SEPARATOR, "-")[:length] or "host"


def _full_name(label: str, server: Server, end: str) -> str:
    return SEPARATOR.join((label, server.identity, end))


# -- connections as owners ----------------------------------------------


class ConnectionOwner(str):
    """The name of a server's connection, made by :func:`connection_owner`."""

    __slots__ = ()


def connection_owner(session: AnySession) -> ConnectionOwner:
    """Make an owner of the session's own connection to the server.

    It costs no further connection. The owner is alive for as long as the server lists
    this connection. The session must keep the connection until its jobs are finished::

        with engine.connect() as connection, Session(connection) as session:
            emails = claim(session, Email, owner=connection_owner(session))

    Returns:
        A str, good for the claims of this session while its connection lasts.

    Raises:
        ArgumentError: the session is not bound to one connection.
        UnsupportedDatabase: a pooler is in between, or the server has no list of its
            connections, or the list hides this connection.
    """
    session = session_of(session)
    _check_one_connection(session)
    connection = session.connection()
    database = database_of(connection)
    _check_no_pooler(database, connection)
    server = database.server_of(connection)
    process = None if server is None else database.own_process(connection)
    if process is None or server is None:
        raise UnsupportedDatabase(
            f"{database} does not say which of its connections this is: use Owner(engine)"
        )
    end = f"@{process.id}.{process.started}"
    length = OWNER_LENGTH - IDENTITY_LENGTH - len(end) - 2 * len(SEPARATOR)
    return ConnectionOwner(_full_name(_host_label(length), server, end))


def _check_one_connection(session: Session) -> None:
    try:
        bind = session.get_bind()
    except UnboundExecutionError:
        bind = None
    if not isinstance(bind, Connection):
        raise ArgumentError(
            "connection_owner() needs a session on one connection, and this session may use "
            "another connection for each transaction. Write: with engine.connect() as connection, "
            "Session(connection) as session: ... Or use Owner(engine)"
        )
