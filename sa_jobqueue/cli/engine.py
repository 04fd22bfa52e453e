"""The SQLAlchemy engine that ``--url``, ``--engine`` or the environment asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ..dialects import Database, database_of, database_of_dialect
from ..dialects import assume_locks as trust_locks
from ..doctor.missing_columns import missing_columns
from .errors import in_one_line
from .targets import load_target

#: The environment variable that names the database where no option does.
URL_VARIABLE = "SA_JOBQUEUE_URL"

EXAMPLE_URL = "sqlite:///sa_jobqueue.db"
DRIVERS = ("postgresql+psycopg2://", "mysql+pymysql://", "mariadb+pymysql://")

#: How long an SQLite connection waits for another writer, in milliseconds.
BUSY_TIMEOUT = 30_000

#: Where a command's context keeps what --assume-locks and --engine say.
ASSUME_LOCKS = "sa_jobqueue.assume_locks"
ENGINE = "sa_jobqueue.engine"

IN_MEMORY = (None, "", ":memory:")


def open_engine(
    url: str | None, *, create_file: bool = False, assume_locks: bool = False
) -> Engine:
    """Return an engine that has connected once; it is disposed of when the command ends.

    Args:
        url: as the user wrote it; None goes by --engine.
        create_file: whether a missing SQLite file is created.
        assume_locks: whether a server is trusted that is refused as a look-alike, also
            without the command's option.

    Raises:
        UsageError: neither or both of a URL and --engine are given.
        ClickException: no connection can be made; says why in one line.
    """
    with driver_errors(url):
        engine = _chosen_engine(url)
        _check_synchronous(engine)
        click.get_current_context().call_on_close(engine.dispose)
        prepare(engine, create_file=create_file, assume_locks=assume_locks)
        with engine.connect() as connection:
            database_of(connection)  # refuses servers that are too old
    return engine


@contextmanager
def driver_errors(url: str | None) -> Iterator[None]:
    """Turn errors of drivers that SQLAlchemy does not know as such into click's."""
    if url is not None:
        _check_url(url)
    try:
        yield
    # A missing driver raises ImportError; PyMySQL without cryptography raises RuntimeError; a
    # driver for asyncio raises OSError when nobody listens.
    except (ImportError, RuntimeError, OSError, NoSuchModuleError) as error:
        raise click.ClickException(f"{in_one_line(error)}{_hint(url)}") from error


def prepare(engine: Engine, *, create_file: bool = False, assume_locks: bool = False) -> None:
    """Have an engine obey --assume-locks, and refuse a file that is not there.

    Raises:
        ClickException: an SQLite file is missing, or is in memory.
    """
    if assume_locks or click.get_current_context().meta.get(ASSUME_LOCKS):
        trust_locks(engine)
    _check_file(engine, create_file=create_file)


def _chosen_engine(url: str | None) -> Engine:
    target = chosen_target(url)
    return make_engine(str(url)) if target is None else _application_engine(target)


def chosen_target(url: str | None) -> str | None:
    """Return the target of --engine; None: the URL counts.

    Raises:
        UsageError: neither or both of them are given.
    """
    context = click.get_current_context()
    target: str | None = context.meta.get(ENGINE)
    if target is None and url is None:
        raise click.UsageError(
            f"which database? Give --url URL or --engine MODULE:ENGINE, or set {URL_VARIABLE}"
        )
    by_option = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if target is not None and by_option:
        raise click.UsageError("--url and --engine both name the database: give one of them")
    return target


def _application_engine(target: str) -> Engine:
    found = load_target(target)
    engine = getattr(found, "sync_engine", found)  # an AsyncEngine is refused by its driver
    if not isinstance(engine, Engine):
        raise click.ClickException(f"{target} is no Engine, but {found!r}")
    return engine


def make_engine(url: str) -> Engine:
    """Return an engine with the settings of our commands, not connected yet."""
    return with_our_settings(create_engine(url))


def with_our_settings(engine: Engine) -> Engine:
    """Have the connections of an engine wait while an SQLite file is busy; return the engine."""
    if _database(engine).one_writer:
        event.listen(engine, "connect", _wait_when_busy)
    return engine


def require_table(bind: Engine | Connection, table: Table) -> None:
    """Refuse to go on without a table, or with one that lacks columns of its model.

    Raises:
        ClickException: names what is missing, and the database.
    """
    where = shown_url(bind.engine)
    if not inspect(bind).has_table(table.name, schema=table.schema):
        raise click.ClickException(
            f"there is no table {table.fullname!r} in {where}; metadata.create_all(engine) or a "
            "migration creates it"
        )
    with bind.connect() if isinstance(bind, Engine) else nullcontext(bind) as connection:
        missing = missing_columns(connection.execute, table, connection.rollback)
    if missing:
        raise click.ClickException(
            f"the table {table.fullname!r} in {where} lacks columns of its model: "
            f"{', '.join(missing)}; your migration adds them: alembic upgrade head"
        )


def shown_url(engine: Engine) -> str:
    """Return the URL without its password, and the path of a file in full."""
    url = engine.url
    if _database(engine).one_writer and url.database not in IN_MEMORY:
        url = url.set(database=str(Path(str(url.database)).absolute()))
    return url.render_as_string(hide_password=True)


def _database(engine: Engine) -> Database:
    return database_of_dialect(engine.dialect)


def _wait_when_busy(connection: Any, _: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT}")


def _check_synchronous(engine: Engine) -> None:
    if engine.dialect.is_async:
        raise click.ClickException(
            f"an engine of {engine.url.drivername} for asyncio cannot be used here: give a "
            f"synchronous one, or --url, as in {', '.join((*DRIVERS, 'sqlite:///FILE'))}"
        )


def _check_file(engine: Engine, *, create_file: bool) -> None:
    if not _database(engine).one_writer:
        return
    name = engine.url.database
    if name in IN_MEMORY:
        raise click.ClickException(
            "processes cannot share a database in memory; name a file: sqlite:///FILE"
        )
    if not create_file and not str(name).startswith("file:") and not Path(str(name)).exists():
        raise click.ClickException(
            f"there is no file {name}; your migration creates it (alembic upgrade head). "
            "Or name another database with --url"
        )


def _check_url(url: str) -> None:
    try:
        make_url(url)
    except (ArgumentError, ValueError) as error:  # such as a port that is no number
        raise click.ClickException(
            f"{in_one_line(error)}; write the URL of a database as in "
            "postgresql+psycopg2://user:password@host:5432/name, or sqlite:///FILE"
        ) from error


def _hint(url: str | None) -> str:
    if url is None or "+" in make_url(url).drivername:
        return ""
    return f"; name the driver in the URL, as in {', '.join(DRIVERS)}"
