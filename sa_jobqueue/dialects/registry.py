"""Which class serves which SQLAlchemy dialect, and the database behind a connection."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Generic, TypeVar
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import make_url
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from ..errors import LockTimeout, UnsupportedDatabase
from .capabilities import Meaning
from .connections import connected_apart, driver_errors
from .database import Database
from .look_alikes import locks_are_assumed, refuse_look_alike
from .mariadb import MariaDB
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

V = TypeVar("V")


class ByDialect(Generic[V]):
    """A value for each dialect that is alive.

    A WeakKeyDictionary does the same, and takes three times as long to look a value up. Each verb
    looks up several.
    """

    def __init__(self) -> None:
        #: By the id of the dialect.
        self.values: dict[int, V] = {}
        self.references: dict[int, ref[Dialect]] = {}

    def get(self, dialect: Dialect) -> V | None:
        """Return the value of a dialect; None if it has none."""
        return self.values.get(id(dialect))

    def setdefault(self, dialect: Dialect, value: V) -> V:
        """Return the value of a dialect; if it has none, this is its value from now on."""
        number, own = id(dialect), ref(self)

        def forget(_: object) -> None:
            kept = own()
            if kept is not None:
                kept.values.pop(number, None)
                kept.references.pop(number, None)

        self.references.setdefault(number, ref(dialect, forget))
        return self.values.setdefault(number, value)


_classes: dict[str, type[Database]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MariaDB,
    "sqlite": SQLite,
}
_databases: ByDialect[Database] = ByDialect()

#: The group of entry points by which installed packages serve further databases. An entry point
#: has the name of a SQLAlchemy dialect, and names a subclass of Database.
OTHERS = "sa_jobqueue.databases"


def database_of(connection: Connection) -> Database:
    """Return the database behind a connection; an engine asks its server once.

    Raises:
        UnsupportedDatabase: no class serves its dialect, the server is too old, or
            it says that it is another product.
    """
    dialect = connection.dialect
    known = _databases.values.get(id(dialect))  # each verb asks
    if known is None:
        known = _databases.setdefault(dialect, _recognised(connection))
    return known


def _recognised(connection: Connection) -> Database:
    """Return the database of a connection whose server is what it seems to be."""
    database = database_of_dialect(connection.dialect)
    if database.product_question is not None and not locks_are_assumed(connection.dialect):
        began = not connection.in_transaction()
        told = connection.exec_driver_sql(database.product_question).one()
        if began:
            connection.rollback()  # the caller may still choose an isolation level
        refuse_look_alike(database.title, [str(word) for word in told])
    return database


def database_of_engine(engine: Engine) -> Database:
    """Return the database behind an engine; connect if the server was not asked yet.

    Raises:
        UnsupportedDatabase: no class serves its dialect, the server is too old, or
            it says that it is another product.
    """
    known = _databases.get(engine.dialect)
    if known is not None:
        return known
    database = database_of_dialect(engine.dialect)
    if database.version is not None and database.product_question is None:
        return database
    with connected_apart(engine) as connection:
        return database_of(connection)


def database_of_dialect(dialect: Dialect) -> Database:
    """Return the database of a dialect, connected or not.

    Raises:
        UnsupportedDatabase: no class serves it, or the server is too old.
    """
    name = dialect.name
    if getattr(dialect, "is_mariadb", False):  # MariaDB under a mysql:// URL
        name = "mariadb"
    if name not in _classes and (found := [*entry_points(group=OTHERS, name=name)]):
        _classes[name] = found[0].load()
    if name not in _classes:
        raise UnsupportedDatabase(
            f"sa_jobqueue does not know the database {name!r}, and will not claim without "
            f"knowing its locks. It serves {', '.join(sorted(_classes))}. For another "
            "database, subclass sa_jobqueue.dialects.Database, and name the class in an entry "
            f"point {name!r} of the group {OTHERS!r}"
        )
    return _classes[name].of(dialect)


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
    return isinstance(error, LockTimeout) or _means(error, "transient")


def is_lock_timeout(error: BaseException) -> bool:
    """Tell whether the wait for a lock took too long, or was refused at once (NOWAIT)."""
    return _means(error, "lock_timeout")


def is_time_limit(error: BaseException) -> bool:
    """Tell whether the database ended a statement because it took longer than it may."""
    return _means(error, "time_limit")


def is_missing_index(error: BaseException) -> bool:
    """Tell whether a statement names an index that its table does not have."""
    return _means(error, "missing_index")


def is_missing_table(error: BaseException) -> bool:
    """Tell whether a statement names a table that the database does not have."""
    return _means(error, "missing_table")


def is_shortage(error: BaseException) -> bool:
    """Tell whether a server lacks room, or is read-only: no statement is to blame."""
    return _means(error, "shortage")


def is_read_only(error: BaseException) -> bool:
    """Tell whether a server takes no writes at present, such as a demoted primary."""
    return _means(error, "read_only")


def is_failed_transaction(error: BaseException) -> bool:
    """Tell whether a server only refuses a statement because one before it has failed."""
    return _means(error, "failed_transaction")


def is_undone(error: BaseException) -> bool:
    """Tell whether a statement has undone itself, by ``Database.undoing()``."""
    return _means(error, "undone")


def is_refused_login(error: BaseException) -> bool:
    """Tell whether a server refuses the URL's user or database."""
    return _means(error, "refused_login")


def _means(error: BaseException, what: Meaning) -> bool:
    """Ask the databases about the errors of drivers behind an error."""
    causes = list(driver_errors(error))
    return any(
        what in database.meanings(cause) for cause in causes for database in _classes.values()
    )


def is_mistake(error: BaseException) -> bool:
    """Tell whether an error is one of the program, such as a missing table or privilege."""
    return isinstance(error, SQLAlchemyError) and (
        isinstance(error, ProgrammingError)
        or not isinstance(error, DBAPIError)
        or _means(error, "mistake")
    )


def is_refusal(error: BaseException) -> bool:
    """Tell whether the database answered a statement, and refuses to run it for good."""
    return (
        isinstance(error, DBAPIError)
        and error.statement is not None
        and not error.connection_invalidated
        and not is_transient(error)
        and not is_shortage(error)
    )
