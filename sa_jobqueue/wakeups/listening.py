"""PostgreSQL: a connection that listens, outside of any pool, and is kept alive.

The connection is one of its own, and not that of the worker's Owner: a worker may have been given a
plain name, or the Owner of somebody else; an Owner that loses its lock goes on with another
connection; and a look for due jobs must not keep an Owner's lock from being renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from ..dialects import Database, Limits, driver_connection
from ..dialects.watched_connection import WatchedConnection
from ..errors import LockLost, UnsupportedDatabase
from .source import Looking, Pause

R = TypeVar("R")

#: The connection asks the server something every 5 s, and waits so long for the answer.
LIMITS = Limits(silence=timedelta(minutes=2), answer=timedelta(seconds=5))


class Listening(Looking):
    """Hears the notifications of tables, by psycopg2, psycopg or asyncpg.

    Args:
        channels: those of the tables.
        tells: every queue notifies.
        heard: called when notifications have come, in another thread.
        noticed: ends a pause, in another thread.
    """

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
        super().__init__(engine)
        self.tells = tells
        self._database = database
        self._channels = channels
        self._heard = heard
        self._noticed = noticed
        self._watched: WatchedConnection
        self._notes: list[Any] = []
        self._read: Callable[[], object] | None = None  # as the driver does it without a question

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected, and listen."""
        self._notes, self._read = [], None
        self._watched = WatchedConnection(
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
            self._watched.close()

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait; look now and then whether the server still answers."""
        pause(min(seconds, LIMITS.pulse.total_seconds()))
        if self._watched.lost:
            raise LockLost("the connection was lost")
        return False

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Ask the server something."""
        return self._watched.ask(question)

    def _collect(self) -> None:
        """Tell that something has come; the watcher is disturbed for a loss only."""
        if self._read is None:  # not yet
            return
        if self._notes:
            self._notes.clear()
            self._heard()
        if not self._watched.sure:
            self._noticed()

    def _receive(self, connection: Connection) -> None:
        """Read what the server has sent unasked."""
        if self._read is not None:
            self._read()

    def _listen(self, connection: Connection) -> None:
        """Listen to the channels.

        Raises:
            UnsupportedDatabase: a pooler is in between, or we do not know this driver.
        """
        if self._database.through_pooler(connection):
            raise UnsupportedDatabase(
                "the worker connects through a pooler, which would give its notifications to "
                "others. Give the worker an engine that connects to the server itself"
            )
        driver, notes = driver_connection(connection), self._notes
        if hasattr(driver, "add_listener"):
            self._listen_by_asyncpg(driver)
            return
        for channel in self._channels:
            connection.exec_driver_sql(f'LISTEN "{channel}"')
        if hasattr(driver, "add_notify_handler"):  # psycopg calls it for what comes with an answer
            driver.add_notify_handler(notes.append)
            server = driver.pgconn

            def receive() -> None:
                server.consume_input()
                while (note := server.notifies()) is not None:  # libpq keeps what came unasked
                    notes.append(note)

            self._read = receive
        elif hasattr(driver, "notifies"):  # psycopg2 keeps what has come, also with an answer
            self._notes, self._read = driver.notifies, driver.poll
        else:
            raise UnsupportedDatabase(
                "only psycopg2, psycopg and asyncpg receive notifications, not "
                f"{type(driver)!r}: use one of these drivers"
            )

    def _listen_by_asyncpg(self, driver: Any) -> None:
        from asyncio import sleep

        from sqlalchemy.util import await_only

        notes = self._notes
        for channel in self._channels:
            await_only(driver.add_listener(channel, lambda *note: notes.append(note)))

        def receive() -> None:
            for _ in range(3):  # the loop reads, asyncpg calls us, and sees the connection's end
                await_only(sleep(0))
            if driver.is_closed():
                raise LockLost("the connection was lost")

        self._read = receive
