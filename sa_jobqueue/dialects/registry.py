"""Which class serves which SQLAlchemy dialect, and the database behind a connection."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import make_url
from sqlalchemy.exc import DBAPIError

from ..errors import LockTimeout, UnsupportedDatabase
from .connections import dedicated_connection
from .database import Database
from .innodb.mariadb import MariaDB
from .innodb.mysql import MySQL
from .postgresql.database import PostgreSQL
from .sqlite.database import SQLite

_registered: dict[str, type[Database]] = {}
_databases: WeakKeyDictionary[Dialect, Database] = WeakKeyDictionary()


def register(name: str, database: type[Database]) -> None:
    """Let this class serve the SQLAlchemy dialect of this name."""
    _registered[name] = database


register("postgresql", PostgreSQL)
register("mysql", MySQL)
register("mariadb", MariaDB)
register("sqlite", SQLite)


def database_of(connection: Connection) -> Database:
    """Return the database behind a connection.

    Raises:
        UnsupportedDatabase: no class is registered for its dialect, or the server is too old.
    """
    dialect = connection.dialect
    try:
        return _databases[dialect]
    except KeyError:
        return _databases.setdefault(dialect, database_of_dialect(dialect))


def database_of_engine(engine: Engine) -> Database:
    """Return the database behind an engine; connect if its version is not known yet.

    Raises:
        UnsupportedDatabase: no class is registered for its dialect, or the server is too old.
    """
    database = database_of_dialect(engine.dialect)
    if database.version is not None:
        return database
    with dedicated_connection(engine) as connection:
        return database_of(connection)


def database_of_dialect(dialect: Dialect) -> Database:
    """Return the database of a dialect, connected or not.

    Raises:
        UnsupportedDatabase: no class is registered for it, or the server is too old.
    """
    name = dialect.name
    if getattr(dialect, "is_mariadb", False):  # MariaDB under a mysql:// URL
        name = "mariadb"
    try:
        database = _registered[name]
    except KeyError:
        raise UnsupportedDatabase(
            f"sa_jobqueue does not know the database {name!r}, and will not claim without "
            f"knowing its locks. It serves {', '.join(sorted(_registered))}. For another "
            "database, subclass sa_jobqueue.dialects.Database and register the class with "
            "sa_jobqueue.dialects.register()."
        ) from None
    return database.of(dialect)


def dialect_of(dialect: str | Dialect) -> Dialect:
    """Return the dialect of this name, not connected; a dialect is returned as it is."""
    if isinstance(dialect, Dialect):
        return dialect
    made: Dialect = make_url(f"{dialect}://").get_dialect()()
    return made


def is_transient(error: BaseException) -> bool:
    """Tell whether a database error may go away when its transaction is run again.

    True for deadlocks, serialization failures, lock wait timeouts, SQLITE_BUSY and
    :class:`LockTimeout`; False for everything else. Roll the whole transaction back
    before you run it again, after a lock wait timeout too.

    Args:
        error: what was raised.
    """
    if isinstance(error, LockTimeout):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    causes = (error.orig, error.orig.__cause__)
    return any(
        database.is_transient(cause)
        for database in _registered.values()
        for cause in causes
        if cause is not None
    )
