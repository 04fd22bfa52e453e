"""Which class serves which SQLAlchemy dialect, and the database behind a connection.

A database's file is loaded when one of its dialects is used, or an error is to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet, ref

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import make_url
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from ..errors import LockTimeout, UnsupportedDatabase
from .connections import connected_apart, driver_errors
from .database import Database

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


#: The group of entry points by which installed packages serve further databases. An entry point
#: has the name of a SQLAlchemy dialect, and names a subclass of Database.
OTHERS = "sa_jobqueue.databases"

#: Our own, by the names of their dialects.
_OURS = {
    "postgresql": "postgresql:PostgreSQL",
    "mysql": "innodb:MySQL",
    "mariadb": "innodb:MariaDB",
    "sqlite": "sqlite:SQLite",
}

_classes: dict[str, type[Database]] = {}
_databases: ByDialect[Database] = ByDialect()


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
    return _class_of(name).of(dialect)


def _class_of(name: str) -> type[Database]:
    """Load the class that serves the dialects of a name."""
    if name not in _classes:
        if name in _OURS:
            found = [EntryPoint(name, f"{__package__}.{_OURS[name]}", OTHERS)]
        else:
            found = [*entry_points(group=OTHERS, name=name)]
        if not found:
            raise UnsupportedDatabase(
                f"sa_jobqueue does not know the database {name!r}, and will not claim without "
                f"knowing its locks. It serves {', '.join(sorted({*_OURS, *_classes}))}. For "
                "another database, subclass sa_jobqueue.databases.Database, and name the class in "
                f"an entry point {name!r} of the group {OTHERS!r}"
            )
        _classes[name] = found[0].load()
    return _classes[name]


def dialect_of(dialect: str | Dialect) -> Dialect:
    """Return the dialect of this name, not connected; a dialect is returned as it is."""
    if isinstance(dialect, Dialect):
        return dialect
    made: Dialect = make_url(f"{dialect}://").get_dialect()()
    return made


# -- errors -------------------------------------------------------------


def _means(error: BaseException, what: str) -> bool:
    """Ask the databases about the errors of drivers behind an error."""
    causes = list(driver_errors(error))
    known = {*map(_class_of, _OURS), *_classes.values()} if causes else set[type[Database]]()
    return any(what in database.meanings(cause) for cause in causes for database in known)


def is_transient(error: BaseException) -> bool:
    """Tell whether a database error may go away when its transaction is run again.

    True for deadlocks, serialization failures, lock wait timeouts, SQLITE_BUSY and
    :class:`LockTimeout`; False for everything else. Roll the whole transaction back
    before you run it again, after a lock wait timeout too.

    Args:
        error: what was raised.
    """
    return isinstance(error, LockTimeout) or _means(error, "transient")


def _asking(what: str) -> Callable[[BaseException], bool]:
    """Return the function that tells whether an error means this: see ``Database.meanings()``."""
    return partial(_means, what=what)


#: A server only refuses a statement because one before it has failed.
is_failed_transaction = _asking("failed_transaction")

#: The wait for a lock took too long, or was refused at once (NOWAIT).
is_lock_timeout = _asking("lock_timeout")

#: A statement names an index that its table does not have.
is_missing_index = _asking("missing_index")

#: A statement names a table that the database does not have.
is_missing_table = _asking("missing_table")

#: A server takes no writes at present, such as a demoted primary.
is_read_only = _asking("read_only")

#: A server refuses the URL's user or database.
is_refused_login = _asking("refused_login")

#: A server lacks room, or is read-only: no statement is to blame.
is_shortage = _asking("shortage")

#: The database ended a statement because it took longer than it may.
is_time_limit = _asking("time_limit")

#: A statement has undone itself, by ``Database.undoing()``.
is_undone = _asking("undone")


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


# -- look-alikes ----------------------------------------------------------

# Some servers answer as PostgreSQL, MySQL or MariaDB do, and are another product. Such a server may
# parse FOR UPDATE SKIP LOCKED and lock nothing, as TiDB does, or lock in a way of its own. So it is
# refused by name, until assume_locks() says that its locks hold.
#
# A name cannot prove that locks hold: a server of an unknown name, or a proxy, may ignore them too.
# A claim that marks counts what it has marked, and a held claim proves the locks of its table.

#: Products that name themselves in version() or @@version_comment, whichever number they show.
_NAMES = (
    "ClickHouse|Cloudberry|CockroachDB|Databend|Dolt|Doris|Greenplum|Materialize|MemSQL|OceanBase|"
    "PGlite|PlanetScale|PolarDB-X|QuestDB|RisingWave|SingleStore|StarRocks|TiDB|Vitess|YugabyteDB"
)
_NAMED = re.compile(rf"\b({_NAMES})", re.IGNORECASE)

#: A version of its own behind that of the server whose place a product takes, as in
#: 8.0.11-TiDB-v8.5.6 and 15.12-YB-2.25. Packagers append numbers, or a word without a number.
_OWN_VERSION = re.compile(r"\d-(?!MariaDB)([A-Za-z]\w*)-v?\d")

#: Where the product ends in PostgreSQL's version(), and the compiler and its machine begin.
_BUILT = re.compile(r" on |,")

_SHORT = {"YB": "YugabyteDB", "TDDL": "PolarDB-X"}


class HasDialect(Protocol):
    """An Engine, an AsyncEngine or a Connection."""

    @property
    def dialect(self) -> Dialect:
        """What SQLAlchemy knows about the server."""
        ...


_assumed: WeakSet[Dialect] = WeakSet()


def assume_locks(engine: HasDialect) -> None:
    """Trust the row locks of an engine's server, whatever product it says that it is.

    For a server that is refused by name, once ``sa-jobqueue doctor --locks`` has shown that its
    locks hold. Held claims of this engine do not prove the locks any more. It belongs to the
    engine: call it beside ``create_engine()``, in each process.

    Args:
        engine: an Engine, an AsyncEngine, or a connection of one.
    """
    _assumed.add(engine.dialect)


def locks_are_assumed(dialect: Dialect) -> bool:
    """Tell whether :func:`assume_locks` was called for the engine of a dialect."""
    return dialect in _assumed


def refuse_look_alike(title: str, told: Sequence[str]) -> None:
    """Refuse a server that says that it is another product.

    Args:
        title: the database whose place the product would take.
        told: what the server says about itself, its version first.

    Raises:
        UnsupportedDatabase: names the product, and the way on.
    """
    product = look_alike(told)
    if product is not None:
        raise UnsupportedDatabase(
            f"this server says that it is {product} ({', '.join(told)}), and not {title}: "
            "sa_jobqueue does not know whether its row locks hold, and does not claim without row "
            "locks. Run `sa-jobqueue doctor --locks MODULE:QUEUE --url URL` to prove them. If they "
            "hold, call sa_jobqueue.assume_locks(engine); commands take this engine by --engine"
        )


def look_alike(told: Sequence[str]) -> str | None:
    """Return the name of a product that is neither PostgreSQL, MySQL nor MariaDB.

    Args:
        told: what the server says about itself, its version first.
    """
    named = _NAMED.search(" ".join(told))
    if named is not None:
        return next(name for name in _NAMES.split("|") if name.lower() == named[1].lower())
    own = _OWN_VERSION.search(_BUILT.split(told[0])[0])
    return None if own is None else _SHORT.get(own[1], own[1])
