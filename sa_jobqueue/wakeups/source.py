"""What a watcher waits for, and the look that tells whether a job is due, or when one will be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine, func, literal_column, select
from sqlalchemy.exc import DBAPIError

from ..databases import Database, Limits, driver_connection
from ..databases.clock import as_utc, utc_now
from ..databases.connections import Calls, SharedConnections, connected_apart
from ..databases.watched_connection import WatchedConnection
from ..errors import LockLost, UnsupportedDatabase
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows

R = TypeVar("R")

#: Waits so many seconds, or until there is something to look at: then it returns True.
Pause: TypeAlias = Callable[[float], bool]


class Looking:
    """A connection to look with. Whatever it raises: it is away.

    By itself, as on MySQL and MariaDB, it never tells of anything.

    Args:
        lines: where the watchers of one pool have a connection in common.

    Attributes:
        tells: it tells of every commit of jobs, so nobody needs to look.
        often: where it does not tell, look often for some time after the last job.
    """

    tells = False
    often = True

    def __init__(self, engine: Engine, database: Database, lines: Lines) -> None:
        self._engine, self._database, self._lines = engine, database, lines
        self._line: Line

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected, outside of the pool and in AUTOCOMMIT."""
        connect = partial(Line, self._engine, self._database)
        self._line = line = self._lines.take(self._engine.pool, connect)
        try:
            yield
        finally:
            line.close()

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait at most so many seconds; tell whether something has changed."""
        pause(min(seconds, LIMITS.pulse.total_seconds()))
        if self._line.lost:
            raise LockLost("the connection was lost")
        return False

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Read on the connection, in no transaction.

        Those who share it go on with it where the server refuses the read: a table is gone, or
        locked.
        """
        refused: list[DBAPIError] = []

        def read(connection: Connection) -> R | None:
            try:
                return question(connection)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                refused.append(error)
                return None

        answer = self._line.ask(read)
        if refused:
            raise refused[0]
        return cast("R", answer)


#: The pause between two questions; one takes some microseconds, and reads no page of the file.
BETWEEN = timedelta(milliseconds=3)


class DataVersion(Looking):
    """SQLite: ``PRAGMA data_version`` tells of the commits of others in the file.

    Its connection is never in a transaction: there the number would not change. Without WAL it
    tells nothing: reading takes a lock there that keeps a writer from its COMMIT.
    """

    often = False

    def __init__(self, engine: Engine) -> None:
        self._engine, self._version = engine, 0
        self._calls: Calls
        self._connection: Connection

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected."""
        self._calls = Calls(self._engine)
        try:
            connected = connected_apart(self._engine)
            self._connection = self._calls.run(connected.__enter__)
            try:
                self.tells = str(self._pragma("journal_mode")).lower() == "wal"
                self._version = self._pragma("data_version")
                yield
            finally:
                self._calls.run(partial(connected.__exit__, None, None, None))
        finally:
            self._calls.close()

    def wait(self, seconds: float, pause: Pause) -> bool:
        """Wait for a commit."""
        if not self.tells:
            pause(seconds)
            return False
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            noticed = pause(min(left, BETWEEN.total_seconds()))
            version, self._version = self._version, self._pragma("data_version")
            if version != self._version:
                return True
            if noticed:
                break
        return False

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Read on the connection, in no transaction."""
        return self._calls.run(lambda: question(self._connection))

    def _pragma(self, name: str) -> Any:
        return self.ask(lambda connection: _pragma(connection, name))


def _pragma(connection: Connection, name: str) -> Any:
    # Below SQLAlchemy, whose statements take fifty times as long.
    driver: Any = connection.connection.dbapi_connection
    with closing(driver.cursor()) as cursor:
        cursor.execute(f"PRAGMA {name}")
        return cursor.fetchone()[0]


# A connection that looks and listens is one of its own, outside of any pool, and not that of an
# Owner: a worker may have been given a plain name, or the Owner of somebody else; an Owner that
# loses its lock goes on with another connection; and a look for due jobs must not keep an Owner's
# lock from being renewed.

#: The connection asks the server something every 5 s, and waits so long for the answer.
LIMITS = Limits(silence=timedelta(minutes=2), answer=timedelta(seconds=5))


class Line(WatchedConnection):
    """A connection that looks, and on PostgreSQL listens: by psycopg2, psycopg or asyncpg."""

    def __init__(self, engine: Engine, database: Database) -> None:
        self._database = database
        self._listening: tuple[Listening, ...] = ()
        self._come: set[str] = set()  # channels
        self._kept: list[Any] = []  # notifications that psycopg2 keeps
        self._read: Callable[[], object] | None = None  # as the driver does it without a question
        super().__init__(engine, LIMITS, database.backend)
        self.ask(self._wait_briefly)

    def _wait_briefly(self, connection: Connection) -> None:
        # Where a table is locked, the others wait for the connection too. And PostgreSQL does not
        # notice that a client is gone which waits for a lock. A pooler would give the setting away.
        if not self._database.through_pooler(connection):
            self._database.limit_waits_of_looks(connection)

    def answered(self) -> None:
        """Tell whom it concerns that something has come."""
        if not (self._come or self._kept):
            return
        heard, self._come = self._come | {note.channel for note in self._kept}, set()
        self._kept.clear()
        for listening in self._listening:
            if not heard.isdisjoint(listening.channels):
                listening.heard()

    def lose(self, why: str) -> None:
        """Note the loss, and disturb the watchers."""
        super().lose(why)
        for listening in self._listening:
            listening.noticed()

    def receive(self, connection: Connection) -> None:
        """Read what the server has sent unasked."""
        if self._read is None:
            super().receive(connection)
        else:
            self._read()

    def leave(self, listening: Listening) -> None:
        """Tell one no more."""
        with self._counting:
            self._listening = tuple(each for each in self._listening if each is not listening)

    def listen(self, listening: Listening, connection: Connection) -> None:
        """Listen to the channels of one, from now on: to be asked as a question.

        Raises:
            UnsupportedDatabase: a pooler is in between, or we do not know this driver.
        """
        if self._database.through_pooler(connection):
            raise UnsupportedDatabase(
                "the worker connects through a pooler, which would give its notifications to "
                "others. Give the worker an engine that connects to the server itself"
            )
        driver, new = driver_connection(connection), set(listening.channels)
        new -= {channel for each in self._listening for channel in each.channels}
        with self._counting:
            self._listening += (listening,)
        if hasattr(driver, "add_listener"):
            self._listen_by_asyncpg(driver, new)
            return
        quote = connection.dialect.identifier_preparer.quote_identifier
        for channel in sorted(new):
            connection.exec_driver_sql(f"LISTEN {quote(channel)}")
        if self._read is not None:
            return
        if hasattr(driver, "add_notify_handler"):  # psycopg calls it for what comes with an answer
            driver.add_notify_handler(lambda note: self._come.add(note.channel))
            server = driver.pgconn

            def receive() -> None:
                server.consume_input()
                while (note := server.notifies()) is not None:  # libpq keeps what came unasked
                    self._come.add(note.relname.decode())

            self._read = receive
        elif hasattr(driver, "notifies"):  # psycopg2 keeps what has come, also with an answer
            self._kept, self._read = driver.notifies, driver.poll
        else:
            raise UnsupportedDatabase(
                "only psycopg2, psycopg and asyncpg receive notifications, not "
                f"{type(driver)!r}: use one of these drivers"
            )

    def _listen_by_asyncpg(self, driver: Any, new: Iterable[str]) -> None:
        from asyncio import sleep

        from sqlalchemy.util import await_only

        def hear(_driver: Any, _process: int, channel: str, _payload: str) -> None:
            self._come.add(channel)

        for channel in sorted(new):
            await_only(driver.add_listener(channel, hear))

        def receive() -> None:
            for _ in range(3):  # the loop reads, asyncpg calls us, and sees the connection's end
                await_only(sleep(0))
            if driver.is_closed():
                raise LockLost("the connection was lost")

        self._read = receive


Lines: TypeAlias = SharedConnections[Line]


class Listening(Looking):
    """PostgreSQL: hears the notifications of tables.

    Args:
        channels: those of the tables, and the application's own.
        tells: every queue is notified of.
        heard: called when notifications have come, in another thread.
        noticed: ends a pause, in another thread.
    """

    def __init__(
        self,
        engine: Engine,
        database: Database,
        lines: Lines,
        channels: frozenset[str],
        *,
        tells: bool,
        heard: Callable[[], None],
        noticed: Callable[[], None],
    ) -> None:
        super().__init__(engine, database, lines)
        self.tells = tells
        self.channels, self.heard, self.noticed = channels, heard, noticed

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected, and listen."""
        with super().opened():
            line = self._line
            try:
                line.ask(partial(line.listen, self))
                yield
            finally:
                line.leave(self)


#: A look visits at most so many rounds and priorities of a queue.
LEVELS = 20


class Look:
    """Reads of several queues.

    Args:
        options: the execution options of the application's engine.
    """

    def __init__(
        self, specs: Sequence[ClaimSpec], database: Database, options: Mapping[str, Any]
    ) -> None:
        self._reads = [_Read(spec, database) for spec in specs]
        self._options = {name: options[name] for name in ("schema_translate_map",) & options.keys()}

    @property
    def knows_times(self) -> bool:
        """Whether jobs become due with time."""
        return any(read.has_time for read in self._reads)

    def due_in(self, connection: Connection) -> float | None:
        """Return the seconds until a job is due, 0 at most if one is; None: none is waiting."""
        soonest: float | None = None
        for read in self._reads:
            for seconds in read.times(connection, self._options):
                soonest = seconds if soonest is None else min(soonest, seconds)
                if soonest <= 0:
                    return soonest
        return soonest


class _Read:
    """The read of one queue: of the first job of each of its levels."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self._spec, self._database, self._mapping = spec, database, spec.mapping
        self._ready = ready = ReadyRows(spec, database)
        self.has_time = self._mapping.has("run_at")
        # In another order the first job is not the one that is due first.
        self._reads_time = self.has_time and spec.own_order
        if self._reads_time:
            columns = [self._mapping.attribute("run_at"), utc_now()]
        else:
            columns = [literal_column("1")]
        read = ready.select(*columns, plain=True, due=not self._reads_time)
        self._statement = ready.by_claim_index(read) if spec.served else read
        self._next = self._next_due() if self.has_time and not self._reads_time else None

    def times(self, connection: Connection, options: Mapping[str, Any]) -> Iterator[float]:
        """Yield the seconds until a job of each level is due."""
        writer = Writer(None, connection, self._database, True, self._mapping.mapper, options)
        for level in islice(self._ready.each_level(writer), LEVELS):
            found: Any = writer.core(self._statement, {"sa_jobqueue_limit": 1, **level}).first()
            if found is not None:
                yield _seconds(*found) if self._reads_time else 0.0
            elif self._next is not None:
                waiting: Any = writer.core(self._next).one()
                if waiting.run_at is not None:
                    yield _seconds(*waiting)

    def _next_due(self) -> Any:
        """Select the time of the job that is due first, whatever the claim order."""
        run_at = self._mapping.attribute("run_at")
        first = select(func.min(run_at).label("run_at"), utc_now())
        return first.where(self._ready.has_status, *self._spec.where)


def _seconds(run_at: datetime, now: datetime) -> float:
    return (as_utc(run_at) - as_utc(now)).total_seconds()
