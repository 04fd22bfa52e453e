"""What MySQL and MariaDB share: InnoDB with its locks and isolation levels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Self

from sqlalchemy import (
    CHAR,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Enum,
    Index,
    Insert,
    Integer,
    Table,
    Update,
    cast,
    delete,
    type_coerce,
)
from sqlalchemy.dialects.mysql import dialect
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from ..clock import LONG_AGO, UtcText, clock_default, utc_now
from ..connections import driver_connection
from ..database import Database
from ..owner_liveness import OwnerState, Process, Server
from . import owner_liveness
from .isolation import (
    OF_MYSQL,
    READ_COMMITTED,
    begin_read_committed,
    running_level,
    session_is_read_committed,
    session_level,
)
from .named_locks import InnoDBNamedLocks
from .serial_key_locks import InnoDBSerialKeyLocks, TableName
from .statements import FORCE_PRIMARY, InsertNew, delete_by_key
from .time_limit import TIME_IS_OVER, variables_set

#: There is no such table; there is none in information_schema.
NO_TABLE = {1146, 1109}


class InnoDB(Database):
    """What MySQL and MariaDB have in common."""

    product_question = "SELECT VERSION(), @@version_comment"

    ordered_update = True
    locks_what_it_scans = True
    keeps_one_key = True
    skips_repeats = True
    checks_references_at_end = False
    time_digits = 0
    joins_literals = False  # PyMySQL and mysqlclient join only VALUES (%s, %s)

    # For a short list of keys the optimizer may choose the reap index or the claim index,
    # and lock rows in another order than other transactions do.
    key_hint: ClassVar[str | None] = FORCE_PRIMARY

    begin_statement: ClassVar[str] = "START TRANSACTION"

    #: How a percent sign is written for the driver: drivers that format parameters with %
    #: take it doubled.
    percent = "%%"

    @classmethod
    def of(cls, dialect: Dialect) -> Self:
        database = super().of(dialect)
        database.percent = "%%" if dialect.paramstyle in ("format", "pyformat") else "%"
        return database

    def begin(self, connection: Connection) -> bool:
        """Make the next transaction READ COMMITTED, unless one is open already.

        Under the default, REPEATABLE READ, claims and finishes of several consumers
        deadlock on gap locks. The statement changes one transaction only: the session's
        own level stays, and nothing needs resetting.

        Connections that are READ COMMITTED already skip the statement.
        """
        variable = self.isolation_variable
        return session_is_read_committed(connection, variable) or begin_read_committed(connection)

    def keeps_snapshot(self, connection: Connection) -> bool:
        level = session_level(connection, self.isolation_variable)
        return level in {"REPEATABLE READ", "SERIALIZABLE"}

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        variable = self.isolation_variable
        if begun and not session_is_read_committed(connection, variable):
            return True  # begin() has made it so
        # The caller may have said SET TRANSACTION: what begins now is READ COMMITTED all the same,
        # and of what is open already the server must tell.
        if begin_read_committed(connection):
            return True
        level = running_level(connection, self.level_question)
        return (level or session_level(connection, variable)) == "READ COMMITTED"

    isolation_variable: ClassVar[str] = "@@transaction_isolation"

    #: The SELECT that tells the level of the open transaction; see :mod:`.isolation`.
    level_question: ClassVar[str] = OF_MYSQL

    @contextmanager
    def transaction_in_autocommit(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(READ_COMMITTED)
        with super().transaction_in_autocommit(connection):
            yield

    def moment(self) -> ColumnElement[Any]:
        # As text: PyMySQL takes 7 microseconds to make a datetime.
        return type_coerce(cast(utc_now(), CHAR(26)), UtcText())

    # -- inserts --------------------------------------------------------

    def insert_new(self, target: Any) -> Insert:
        return InsertNew(target)

    # -- writes by primary key ------------------------------------------

    # For a list of keys the optimizer scans a small table: it waits for rows that others
    # have locked, and deadlocks with them. A queue that is almost empty is small.

    def update_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Update:
        plain = super().update_by_key(table, keys)
        return plain.with_hint(FORCE_PRIMARY) if _are_primary(table, keys) else plain

    def delete_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Delete:
        return delete_by_key(table) if _are_primary(table, keys) else delete(table)

    def comparable(self, expression: Any) -> Any:
        # ORDER BY sorts an ENUM by the numbers of its words, but < compares the words.
        if isinstance(expression.type, Enum) and expression.type.native_enum:
            return type_coerce(expression, Integer) + 0
        return expression

    # -- connections ----------------------------------------------------

    #: The variable that limits how long a statement may run.
    statement_limit: ClassVar[str]

    #: What that variable counts.
    limit_unit: ClassVar[timedelta]

    def time_limit(self, connection: Connection, limit: timedelta) -> AbstractContextManager[None]:
        # MySQL's variable is for SELECT alone: what a write waits for has limits of its own.
        seconds = max(1, round(limit.total_seconds()))
        waits = dict.fromkeys(("innodb_lock_wait_timeout", "lock_wait_timeout"), seconds)
        most = max(1, limit // self.limit_unit)  # 0 would be no limit
        return variables_set(connection, {self.statement_limit: most, **waits})

    def told_backend(self, connection: Connection) -> int | None:
        # PyMySQL and mysqlclient; the connectors of MySQL and of MariaDB.
        driver = driver_connection(connection)
        found = getattr(driver, "thread_id", None) or getattr(driver, "connection_id", None)
        told = found() if callable(found) else found
        return told if isinstance(told, int) else None

    def backend(self, connection: Connection) -> int | None:
        # 32 bits, since the handshake has room for no more. And not a plain SELECT
        # CONNECTION_ID(), which ProxySQL answers by itself.
        number = connection.exec_driver_sql("SELECT CONNECTION_ID() & 0xFFFFFFFF").scalar_one()
        return int(number)

    def lock_wait(self, connection: Connection) -> timedelta:
        seconds = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        return timedelta(seconds=int(seconds))

    def pause(self, connection: Connection, time: timedelta) -> None:
        connection.exec_driver_sql(f"DO SLEEP({time.total_seconds():.6f})")

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        return TableName(table)

    # -- owners ---------------------------------------------------------

    global_variables: ClassVar[str]
    global_status: ClassVar[str]

    #: The variables that differ from server to server.
    identified_by: ClassVar[tuple[str, ...]]

    to_know_owners: ClassVar[str] = ", since it does not show its global variables"

    def server_of(self, connection: Connection) -> Server | None:
        try:
            return owner_liveness.server_of(
                connection, self.title, self.global_variables, self.identified_by
            )
        except DBAPIError as error:  # a look-alike may lack the table, as OceanBase's seekdb does
            if error.orig is None or _number(error.orig) not in NO_TABLE:
                raise
            return None

    def own_process(self, connection: Connection) -> Process:
        return owner_liveness.own_process(connection, self.global_status)

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        own = self.own_process(connection)
        states = owner_liveness.process_states(connection, own, processes)
        return super().process_states(connection, processes) if states is None else states

    # -- plans ----------------------------------------------------------

    # With few jobs among many done rows the optimizer expects that walking over the primary
    # key finds a few rows in that order sooner: among 5 million rows, a claim took 4 seconds
    # on MariaDB.

    def forced_index(self, index: Index) -> str | None:
        # SQLAlchemy formats the hint of a SELECT with %, and the driver its text once more.
        return f"FORCE INDEX ({self.index_name(index)})".replace("%", "%%")

    order_hint: ClassVar[str | None] = "IGNORE INDEX FOR ORDER BY (PRIMARY)"

    def index_name(self, index: Index) -> str:
        """Return an index's name as the naming convention makes it, quoted for the driver."""
        return _bare(dialect().identifier_preparer.format_index(index)).replace("%", self.percent)

    @classmethod
    def is_missing_index(cls, error: BaseException) -> bool:
        return error.args[:1] == (1176,)

    # -- errors ---------------------------------------------------------

    @classmethod
    def is_missing_table(cls, error: BaseException) -> bool:
        return _number(error) in NO_TABLE

    @classmethod
    def is_time_limit(cls, error: BaseException) -> bool:
        return _number(error) in TIME_IS_OVER

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return _number(error) in {1205, 3572}  # 3572: MySQL's NOWAIT

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        if error.args[:1] == (1180,):  # COMMIT failed: transient for the storage engine's deadlock
            return "149" in str(error.args[1:])
        if error.args[:1] == (1305,):
            # After a deadlock SQLAlchemy rolls back to a savepoint that went with the transaction,
            # and this error hides that of the deadlock.
            return str(error.args[1]).startswith("SAVEPOINT")
        # Deadlock; lock wait timeout; MySQL's NOWAIT; record has changed since last read; Group
        # Replication's certification, and Galera's node that is not ready.
        return _number(error) in {1213, 1205, 3572, 1020, 3101, 1047}

    @classmethod
    def is_shortage(cls, error: BaseException) -> bool:
        # Disk or table full, out of memory, an error of the storage engine or of a file.
        short = {1021, 1114, 1037, 1038, 1041, 1030, 1026, 3}
        return _number(error) in short or cls.is_read_only(error)

    @classmethod
    def is_read_only(cls, error: BaseException) -> bool:
        if _number(error) == 1290:  # an option of the server forbids it: read_only or another one
            return "read" in str(error.args[1:])
        return _number(error) in {1792, 1836}

    @classmethod
    def is_mistake(cls, error: BaseException) -> bool:
        return _number(error) in {1142, 1143}  # no privilege for a table, or for a column

    @classmethod
    def is_refused_login(cls, error: BaseException) -> bool:
        return _number(error) in {1044, 1045, 1049, 1698}

    # -- parts ----------------------------------------------------------

    def named_locks(self) -> InnoDBNamedLocks:
        return InnoDBNamedLocks(self, statement_limit=self.statement_limit)

    def serial_key_locks(self) -> InnoDBSerialKeyLocks:
        return InnoDBSerialKeyLocks()


def _bare(quoted: str) -> str:
    """Return a quoted name as the server is to see it, without the driver's ``%%``."""
    return quoted.replace("%%", "%")


def in_text(*names: str) -> str:
    """Return quoted names as they stand in a ``text()``, which doubles % and knows ``:name``."""
    return " ".join(_bare(name).replace(":", "\\:") for name in names)


def _number(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def _are_primary(table: Table, keys: Sequence[Column[Any]]) -> bool:
    """Tell whether columns are the table's primary key: a mapper's may differ from it."""
    return bool(keys) and set(keys) == set(table.primary_key.columns)


@compiles(utc_now, "mysql", "mariadb")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    if not element.clauses.clauses:
        return "UTC_TIMESTAMP(6)"
    shift = compiler.process(element.clauses, **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {shift} MICROSECOND)"


@compiles(clock_default, "mysql", "mariadb")
def _clock_default(element: clock_default, compiler: Any, **kw: Any) -> str:
    if _takes_expressions(compiler.dialect):
        return f"({compiler.process(utc_now(), **kw)})"
    return f"'{LONG_AGO}'"


def _takes_expressions(dialect: Any) -> bool:
    """Tell whether an expression may be a column's default; not connected: as the newest."""
    version = getattr(dialect, "server_version_info", None)
    return dialect.is_mariadb or not version or version >= (8, 0, 13)
