"""PostgreSQL: a connection that listens, and proves now and then that it hears.

The connection is one of its own, and not that of the worker's Owner: a worker may have been given a
plain name, or the Owner of somebody else; an Owner that loses its lock goes on with another
connection; and a look for due jobs must not keep an Owner's lock from being renewed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from ..dialects import Database, Limits, driver_connection
from ..dialects.watched_connection import WatchedConnection
from ..errors import LockLost, UnsupportedDatabase
from .source import Pause

R = TypeVar("R")

#: How often the connection notifies itself, and how long it may take to hear that.
PROVES_EVERY = timedelta(seconds=10)
HEARS_WITHIN = timedelta(seconds=5)

LIMITS = Limits(silence=timedelta(minutes=2), answer=HEARS_WITHIN)


class Deaf(Exception):
    """A connection does not hear its own notification."""


class Proof:
    """Whether a connection hears what it sends to itself, on a channel that is its own."""

    def __init__(self) -> None:
        self.channel = f"sa_jobqueue-self-{secrets.token_hex(8)}"
        self._sent = self._heard = 0
        self._due_at = 0.0

    @property
    def due_in(self) -> float:
        """The seconds until it is due; 0: it is."""
        return max(0.0, self._due_at - time.monotonic())

    def due_now(self) -> None:
        """Have it be due: the connection is new."""
        self._due_at = 0.0

    def send(self) -> str:
        """Return the statement that is to be heard."""
        self._sent += 1
        self._due_at = time.monotonic() + PROVES_EVERY.total_seconds()
        return f"NOTIFY \"{self.channel}\", '{self._sent}'"

    def note(self, channel: str, payload: str) -> bool:
        """Tell whether a notification was our own."""
        if channel == self.channel:
            self._heard = int(payload)
        return channel == self.channel

    def wait(self, pause: Pause) -> None:
        """Wait until it is heard.

        Raises:
            Deaf: it was not.
        """
        until = time.monotonic() + HEARS_WITHIN.total_seconds()
        while self._heard < self._sent:
            left = until - time.monotonic()
            if left <= 0:
                raise Deaf("the connection does not hear its own notifications")
            pause(left)


class Listening:
    """Hears the notifications of tables, by psycopg2, psycopg or asyncpg.

    Args:
        channels: those of the tables.
        tells: every queue notifies.
        heard: called when notifications have come, in another thread.
        noticed: ends a pause, in another thread.
    """

    often = True

    def __init__(
        self,
        engine: Engine,
        database: Database,
        channels: Sequence[str],
        *,
        tells: bool,
        heard: Callable[[], None],
        noticed: Callable[[], None],
    ) -> None:
        self.tells = tells
        self._engine = engine
        self._database = database
        self._channels = channels
        self._heard = heard
        self._noticed = noticed
        self._ear: Ear | None = None
        self._proof = Proof()
        self._connection: WatchedConnection

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected, and listen."""
        self._ear = None
        self._connection = WatchedConnection(
            self._engine,
            LIMITS,
            self._database.backend,
            after_answer=self._collect,
            receive=self._receive,
        )
        try:
            self.ask(self._listen)
            yield
        finally:
            self._connection.close()

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait; prove meanwhile that we hear."""
        if not self._proof.due_in:
            self._prove(pause)
        pause(min(seconds, self._proof.due_in))
        if self._connection.lost:
            raise LockLost("the connection was lost")
        return False

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Ask the server something."""
        return self._connection.ask(question)

    def _listen(self, connection: Connection) -> None:
        refuse_pooler(self._database, connection)
        self._ear = listen(connection, [*self._channels, self._proof.channel])
        self._proof.due_now()

    def _prove(self, pause: Pause) -> None:
        statement = self._proof.send()
        self.ask(lambda connection: connection.exec_driver_sql(statement) and None)
        self._proof.wait(pause)

    def _receive(self, connection: Connection) -> None:
        if self._ear is not None:
            self._ear.receive()

    def _collect(self) -> None:
        """Note what has come; the watcher is disturbed for a proof or a loss only."""
        if self._ear is None:
            return
        notes = self._ear.taken()
        jobs = [channel for channel, payload in notes if not self._proof.note(channel, payload)]
        if jobs:
            self._heard()
        if len(jobs) < len(notes) or not self._connection.sure:
            self._noticed()


def refuse_pooler(database: Database, connection: Connection) -> None:
    """Refuse a connection that may be another one for each statement.

    Raises:
        UnsupportedDatabase: a pooler is in between.
    """
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            "the worker connects through a pooler, which would give its notifications to others. "
            "Give the worker an engine that connects to the server itself"
        )


class Ear(Protocol):
    """How a driver's connection hears."""

    def receive(self) -> None:
        """Read what the server has sent, without asking it anything."""

    def taken(self) -> list[tuple[str, str]]:
        """Return the channels and payloads that came since the last call."""
        ...


def listen(connection: Connection, channels: Iterable[str]) -> Ear:
    """Listen to channels.

    Raises:
        UnsupportedDatabase: we do not know this driver.
    """
    driver = driver_connection(connection)
    if hasattr(driver, "add_listener"):
        return _Asyncpg(driver, channels)
    for channel in channels:
        connection.exec_driver_sql(f'LISTEN "{channel}"')
    if hasattr(driver, "add_notify_handler"):
        return _Psycopg(driver)
    if hasattr(driver, "notifies"):
        return _Psycopg2(driver)
    raise UnsupportedDatabase(
        f"only psycopg2, psycopg and asyncpg receive notifications, not {type(driver)!r}: use one "
        "of these drivers"
    )


class _Psycopg2:
    """psycopg2 keeps what has come, also with an answer."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def receive(self) -> None:
        self._driver.poll()

    def taken(self) -> list[tuple[str, str]]:
        return [(note.channel, note.payload) for note in _taken(self._driver.notifies)]


class _Psycopg:
    """psycopg calls a handler for what comes with an answer; libpq keeps what came unasked."""

    def __init__(self, driver: Any) -> None:
        self._server = driver.pgconn
        self._found: list[tuple[str, str]] = []
        driver.add_notify_handler(lambda note: self._found.append((note.channel, note.payload)))

    def receive(self) -> None:
        self._server.consume_input()
        while (note := self._server.notifies()) is not None:
            self._found.append((note.relname.decode(), note.extra.decode()))

    def taken(self) -> list[tuple[str, str]]:
        return _taken(self._found)


class _Asyncpg:
    """asyncpg reads whenever its event loop runs."""

    def __init__(self, driver: Any, channels: Iterable[str]) -> None:
        from sqlalchemy.util import await_only

        self._await = await_only
        self._driver = driver
        self._found: list[tuple[str, str]] = []
        for channel in channels:
            await_only(driver.add_listener(channel, lambda *heard: self._found.append(heard[2:])))

    def receive(self) -> None:
        from asyncio import sleep

        for _ in range(3):  # the loop reads, asyncpg calls us, and the end of a connection is seen
            self._await(sleep(0))
        if self._driver.is_closed():
            raise LockLost("the connection was lost")

    def taken(self) -> list[tuple[str, str]]:
        return _taken(self._found)


def _taken(found: list[Any]) -> list[Any]:
    taken = list(found)
    del found[: len(taken)]
    return taken
