"""One file per database; :func:`database_of` finds the one behind a connection.

A database of your own: subclass :class:`Database`, say how its clock reads with
``@compiles(utc_now, "its-name")``, and :func:`register` it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from ..errors import LockTimeout, UnsupportedDatabase
from .capabilities import Database
from .drivers import connect_errors
from .innodb.mariadb import MariaDB
from .innodb.mysql import MySQL
from .lock_connection import dedicated_connection
from .postgresql.database import PostgreSQL
from .sqlite.database import SQLite

__all__ = [
    "Database",
    "connect_errors",
    "database_of",
    "database_of_dialect",
    "database_of_engine",
    "is_transient",
    "register",
]

_registry: dict[str, type[Database]] = {}
_databases: WeakKeyDictionary[Dialect, Database] = WeakKeyDictionary()


def register(name: str, database: type[Database]) -> None:
    """Say which class serves the SQLAlchemy dialect of this name."""
    _registry[name] = database


register("postgresql", PostgreSQL)
register("mysql", MySQL)
register("mariadb", MariaDB)
register("sqlite", SQLite)


def database_of(connection: Connection) -> Database:
    """Return the database behind a connection.

    Raises:
        UnsupportedDatabase: none is registered for it, or the server is too old.
    """
    dialect = connection.dialect
    try:
        return _databases[dialect]
    except KeyError:
        return _databases.setdefault(dialect, database_of_dialect(dialect))


def database_of_engine(engine: Engine) -> Database:
    """Return the database behind an engine; the server is asked if nobody did yet.

    Raises:
        UnsupportedDatabase: none is registered for it, or the server is too old.
    """
    database = database_of_dialect(engine.dialect)
    if database.version is not None:
        return database
    with dedicated_connection(engine) as connection:
        return database_of(connection)


def database_of_dialect(dialect: Dialect) -> Database:
    """Return the database of a dialect, connected or not."""
    name = dialect.name
    if getattr(dialect, "is_mariadb", False):  # MariaDB under a mysql:// URL
        name = "mariadb"
    try:
        database = _registry[name]
    except KeyError:
        raise UnsupportedDatabase(
            f"sa_jobqueue does not know the database {name!r}, and will not claim without "
            f"knowing its locks. It serves {', '.join(sorted(_registry))}; another one is a "
            "subclass of sa_jobqueue.dialects.Database, registered with "
            "sa_jobqueue.dialects.register()."
        ) from None
    return database.of(dialect)


def is_transient(error: BaseException) -> bool:
    """Tell whether an engine's error goes away when its transaction is run again.

    Deadlocks, serialization failures, lock wait timeouts and SQLITE_BUSY do, and
    :class:`LockTimeout`. Roll the whole transaction back first, after a lock wait
    timeout too.

    Args:
        error: what was raised; anything but these is not transient.
    """
    if isinstance(error, LockTimeout):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    causes = (error.orig, error.orig.__cause__)
    return any(
        database.is_transient(cause)
        for database in _registry.values()
        for cause in causes
        if cause is not None
    )
