"""The databases that options or the environment name; nobody guesses them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from sqlalchemy import Connection, Engine, Table, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.util import greenlet_spawn

from ..databases import database_of, database_of_dialect
from ..doctor.checks import what_lacks
from ..worker.deadlines import Deadlines
from .options import given, text
from .printing import in_one_line
from .targets import load_target

R = TypeVar("R")

#: ``eu=postgresql://..``, or a URL without a name.
NAMED = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<url>.*)", re.DOTALL)

#: The environment variable that names the database where no option does.
URL_VARIABLE = "SA_JOBQUEUE_URL"

URLS = (
    "postgresql+psycopg2://user:password@host/name, mysql+pymysql://.., mariadb+pymysql://.. or "
    "sqlite:///FILE"
)

#: How long a call to a database may take until the command shows the others.
PATIENCE = timedelta(seconds=10)

#: How long a command waits for the network when it ends: asyncpg waits for an answer.
FAREWELL = timedelta(seconds=5)

#: How long an SQLite connection waits for another writer, in seconds.
BUSY_TIMEOUT = 30.0


class Urls(click.types.StringParamType):
    """URLs; the environment may name several, with spaces between them."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Divide before each name: a path may have a space."""
        return re.split(r"\s+(?=[\w.-]+=)", rv.strip())


OF_URL = f"The database: {URLS}. Several: --url eu=URL --url us=URL."
OF_ENGINE = (
    "The application's own Engine, AsyncEngine or sessionmaker, instead of --url; or a function "
    "that returns a mapping of names to several."
)
IN_ENVIRONMENT: Any = {"multiple": True, "envvar": URL_VARIABLE, "show_envvar": True}

#: The options that name databases.
DATABASES = (
    text(OF_URL, "[NAME=]URL", type=Urls(), **IN_ENVIRONMENT).named("url"),
    text(OF_ENGINE, "MODULE:ENGINE").named("engine", "--engines"),
    text("Only this one, of several with names.").named("database"),
)


@dataclass(frozen=True)
class Databases:
    """What the options say of a command's databases; one that has no name is called "".

    Attributes:
        url, engine: what these options name; the last of them counts.
        database: the one to work on, of several.
    """

    url: tuple[str, ...] = ()
    engine: str | None = None
    database: str | None = None

    def sources(self, *, awaits: bool = False) -> dict[str, Any]:
        """Return the application's engines or sessionmakers, or engines of the URLs, by name.

        Args:
            awaits: prefer a driver for asyncio, if a URL's driver can be both.

        Raises:
            UsageError: no option names a database, or not so that each has a name.
            ClickException: an engine cannot be made.
        """
        with driver_errors():
            if self.engine:
                found = load_target(self.engine)
                found = found() if isfunction(found) else found
                found = found if isinstance(found, Mapping) else {"": found}
            else:
                named = self._named_urls().items()
                found = {name: engine_of(url, awaits=awaits) for name, url in named}
        if self.database not in (None, *found):
            known = ", ".join(found) if any(found) else "none has a name"
            raise click.UsageError(f"there is no database {self.database!r} among them: {known}")
        return {name: it for name, it in found.items() if self.database in (None, name)}

    def engines_now(self) -> dict[str, Engine]:
        """Return the engines of the sources by name."""
        return {name: self.engine_in(source) for name, source in self.sources().items()}

    def _named_urls(self) -> dict[str, str]:
        if not self.url:
            raise click.UsageError(
                f"which database? Give --url URL or --engine MODULE:ENGINE, or set {URL_VARIABLE}"
            )
        parts = [NAMED.fullmatch(url) for url in self.url]
        named = {part["name"] or "": part["url"] for part in parts if part}
        if len(named) < len(self.url) or (len(named) > 1 and "" in named):
            raise click.UsageError(
                "each of several databases has a name of its own: --url eu=URL --url us=URL"
            )
        return named

    def open(
        self,
        work: Callable[[dict[str, Any], dict[str, Engine]], R],
        *,
        awaits: bool = False,
        threads: bool = False,
    ) -> R:
        """Call `work` with the sources, and with their engines, which have not connected.

        They are disposed of afterwards. Engines for asyncio work in an event loop.

        Args:
            awaits: as for :meth:`sources`.
            threads: whether it works in threads; then an engine for asyncio is refused.

        Raises:
            UsageError, ClickException: as for :meth:`sources`.
        """
        sources = self.sources(awaits=awaits)
        engines = {name: self.engine_in(source) for name, source in sources.items()}

        def disposing() -> R:
            try:
                return work(sources, engines)
            finally:
                for engine in engines.values():
                    with Deadlines(engine, FAREWELL):
                        engine.dispose()

        awaited = [engine.url for engine in engines.values() if engine.dialect.is_async]
        if awaited and threads:
            raise click.ClickException(
                f"an engine of {awaited[0].drivername} for asyncio cannot be used here: give a "
                f"synchronous one, or --url, as in {URLS}"
            )
        return asyncio.run(greenlet_spawn(disposing)) if awaited else disposing()

    def engine_in(self, source: Any) -> Engine:
        """Return the engine of a source.

        Raises:
            ClickException: it has none.
        """
        bind = getattr(source, "kw", {}).get("bind", source)  # of a sessionmaker
        engine = getattr(bind, "sync_engine", bind)
        if not isinstance(engine, Engine):
            raise click.ClickException(
                f"{self.engine} is no Engine, AsyncEngine, sessionmaker or "
                "async_sessionmaker with an engine, but of the class "
                f"{type(source).__name__}"  # a text may have a password
            )
        return engine


def named_databases() -> Databases:
    """Return what the options of the running command name.

    Raises:
        UsageError: two of them name the database.
    """
    source = click.get_current_context().get_parameter_source("url")
    if given("engine") and source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url, --engine: give one of them, not both")
    return Databases(given("url"), given("engine"), given("database"))


def connect(engine: Engine, tables: Iterable[Table] = ()) -> None:
    """Connect, and refuse a database without these tables.

    Raises:
        ClickException: no connection can be made, or a table is missing; says why in one line.
    """
    check_file(engine)
    with driver_errors(), engine.connect() as connection:
        require_tables(connection, tables)


def check_file(engine: Engine) -> None:
    """Refuse an SQLite file that is missing: a mistyped name would make an empty one."""
    name = engine.url.database or ":memory:"
    one_writer = database_of_dialect(engine.dialect).one_writer
    if one_writer and not name.startswith("file:") and not Path(name).exists():
        raise click.ClickException(
            f"there is no file {name}, and processes cannot share a database in memory; your "
            "migration creates a file (alembic upgrade head), and --url names it: sqlite:///FILE"
        )


def engine_of(text: str, *, awaits: bool = False) -> Any:
    """Make an engine of a URL."""
    url = make_url(text)
    dialect = url.get_dialect()
    is_sqlite = url.get_backend_name() == "sqlite"
    options: Any = {"connect_args": {"timeout": BUSY_TIMEOUT}} if is_sqlite else {}
    if dialect.is_async or (awaits and dialect.get_async_dialect_cls(url).is_async):
        from sqlalchemy.ext.asyncio import create_async_engine  # it needs greenlet

        return create_async_engine(url, **options)
    return create_engine(url, **options)


def one_of(found: Mapping[str, R]) -> R:
    """Return the one of these databases.

    Raises:
        UsageError: there are several.
    """
    if len(found) != 1:
        raise click.UsageError(
            f"this works on one database: choose one of {', '.join(found)} by --database NAME"
        )
    return next(iter(found.values()))


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn errors of URLs, and of drivers that SQLAlchemy does not know as such, into click's."""
    try:
        yield
    # A missing driver raises ImportError, a port that is no number ValueError; PyMySQL without
    # cryptography raises RuntimeError; a driver for asyncio OSError when nobody listens; an
    # option that a driver does not know TypeError.
    except (ImportError, RuntimeError, OSError, TypeError, ValueError, ArgumentError) as error:
        hint = "" if isinstance(error, OSError) else f"; write the URL of a database as in {URLS}"
        raise click.ClickException(f"{in_one_line(error)}{hint}") from error


def require_tables(connection: Connection, tables: Iterable[Table]) -> None:
    """Refuse a server that is too old, and a table that is missing or lacks columns of its model.

    Raises:
        ClickException: names what is missing, and the database.
    """
    database_of(connection)
    for table in tables:
        if lack := what_lacks(lambda: connection, table, connection.rollback):
            raise click.ClickException(
                f"{lack}, in {shown_url(connection.engine)}; metadata.create_all(engine) creates "
                "tables, and your migration adds columns: alembic upgrade head"
            )


def shown_url(engine: Engine) -> str:
    """Return the URL without its passwords."""
    secret = [name for name in engine.url.query if "pass" in name.lower()]
    return engine.url.difference_update_query(secret).render_as_string(hide_password=True)
