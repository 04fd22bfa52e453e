"""The database that ``--url``, ``--engine`` or the environment names; nobody guesses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from sqlalchemy import URL, Connection, Engine, Table, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.util import greenlet_spawn

from ..dialects import assume_locks, database_of, database_of_dialect
from ..doctor.checks import missing_columns
from ..sessions.deadlines import Deadlines
from .printing import in_one_line
from .targets import load_target

R = TypeVar("R")

#: The environment variable that names the database where no option does.
URL_VARIABLE = "SA_JOBQUEUE_URL"

URLS = (
    "postgresql+psycopg2://user:password@host/name, mysql+pymysql://.., mariadb+pymysql://.. or "
    "sqlite:///FILE"
)

#: How long a command waits for the network when it ends: asyncpg waits for an answer.
FAREWELL = timedelta(seconds=5)

#: How long an SQLite connection waits for another writer, in seconds.
BUSY_TIMEOUT = 30.0

IN_MEMORY = (None, "", ":memory:")


@dataclass(frozen=True)
class Database:
    """What the options say of a command's database.

    Attributes:
        url, target: what --url and --engine name; the engine counts, if both are there.
        trusted: whether a server is used that is refused as a look-alike.
        create_file: whether a missing SQLite file is created.
    """

    url: str | None
    target: str | None = None
    trusted: bool = False
    create_file: bool = False

    def run(
        self, work: Callable[[Engine], R], tables: Iterable[Table] = (), *, threads: bool = False
    ) -> R:
        """Call `work` with an engine that has connected; one for asyncio works in an event loop.

        Args:
            tables: those that must be there.
            threads: refuse an engine for asyncio, since `work` uses it in several threads.

        Raises:
            ClickException: no connection can be made, or a table is missing; says why in one line.
        """

        def connected(_: Any, engine: Engine) -> R:
            if threads and engine.dialect.is_async:
                raise click.ClickException(
                    f"an engine of {engine.url.drivername} for asyncio cannot be used here: give a "
                    f"synchronous one, or --url, as in {URLS}"
                )
            with driver_errors(), engine.connect() as connection:
                require_tables(connection, tables)
            return work(engine)

        return self.open(connected)

    def open(self, work: Callable[[Any, Engine], R], *, awaits: bool = False) -> R:
        """Call `work` with the application's engine or sessionmaker, or an engine of the URL.

        It also gets the engine, which has not connected, and is disposed of afterwards.

        Args:
            awaits: prefer a driver for asyncio, if the URL's driver can be both.

        Raises:
            UsageError: no option names a database.
            ClickException: the engine cannot be made, or its file is missing.
        """
        if not self.target and not self.url:
            raise click.UsageError(
                f"which database? Give --url URL or --engine MODULE:ENGINE, or set {URL_VARIABLE}"
            )
        with driver_errors():
            source = load_target(self.target) if self.target else self._engine_of_url(awaits)
        engine = self._engine_in(source)
        if self.trusted:
            assume_locks(engine)
        self._check_file(engine)

        def disposing() -> R:
            try:
                return work(source, engine)
            finally:
                with Deadlines(engine, FAREWELL):
                    engine.dispose()

        if not engine.dialect.is_async:
            return disposing()
        return asyncio.run(greenlet_spawn(disposing))

    def _engine_of_url(self, awaits: bool) -> Any:
        url = make_url(str(self.url))
        dialect, options = url.get_dialect(), driver_options(url)
        if dialect.is_async or (awaits and dialect.get_async_dialect_cls(url).is_async):
            from sqlalchemy.ext.asyncio import create_async_engine  # it needs greenlet

            return create_async_engine(url, **options)
        return create_engine(url, **options)

    def _engine_in(self, source: Any) -> Engine:
        bind = getattr(source, "kw", {}).get("bind", source)  # of a sessionmaker
        engine = getattr(bind, "sync_engine", bind)
        if not isinstance(engine, Engine):
            raise click.ClickException(
                f"{self.target} is no Engine, AsyncEngine, sessionmaker or async_sessionmaker with "
                f"an engine, but {source!r}"
            )
        return engine

    def _check_file(self, engine: Engine) -> None:
        """Refuse an SQLite file that is missing: a mistyped name would make an empty one."""
        name = engine.url.database
        if not database_of_dialect(engine.dialect).one_writer:
            return
        if name in IN_MEMORY:
            raise click.ClickException(
                "processes cannot share a database in memory; name a file: sqlite:///FILE"
            )
        if not self.create_file and not f"{name}".startswith("file:") and not Path(name).exists():
            raise click.ClickException(
                f"there is no file {name}; your migration creates it (alembic upgrade head). "
                "Or name another database with --url"
            )


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn errors of URLs, and of drivers that SQLAlchemy does not know as such, into click's."""
    try:
        yield
    # A missing driver raises ImportError, a port that is no number ValueError; PyMySQL without
    # cryptography raises RuntimeError; a driver for asyncio OSError when nobody listens.
    except (ImportError, RuntimeError, OSError, ValueError, ArgumentError) as error:
        hint = "" if isinstance(error, OSError) else f"; write the URL of a database as in {URLS}"
        raise click.ClickException(f"{in_one_line(error)}{hint}") from error


def driver_options(url: URL) -> dict[str, Any]:
    """Return what create_engine() needs besides the URL."""
    is_sqlite = url.get_backend_name() == "sqlite"
    return {"connect_args": {"timeout": BUSY_TIMEOUT}} if is_sqlite else {}


def require_tables(connection: Connection, tables: Iterable[Table]) -> None:
    """Refuse a server that is too old, and a table that is missing or lacks columns of its model.

    Raises:
        ClickException: names what is missing, and the database.
    """
    database_of(connection)
    where = shown_url(connection.engine)
    for table in tables:
        if not inspect(connection).has_table(table.name, schema=table.schema):
            raise click.ClickException(
                f"there is no table {table.fullname!r} in {where}; metadata.create_all(engine) or "
                "a migration creates it"
            )
        missing = missing_columns(connection.execute, table, connection.rollback)
        if missing:
            raise click.ClickException(
                f"the table {table.fullname!r} in {where} lacks columns of its model: "
                f"{', '.join(missing)}; your migration adds them: alembic upgrade head"
            )


def shown_url(engine: Engine) -> str:
    """Return the URL without its password, and the path of a file in full."""
    url = engine.url
    if database_of_dialect(engine.dialect).one_writer and url.database not in IN_MEMORY:
        url = url.set(database=str(Path(str(url.database)).absolute()))
    return url.render_as_string(hide_password=True)
