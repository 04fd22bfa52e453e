"""What MySQL and MariaDB share: InnoDB with its locks and isolation levels."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Self
from uuid import uuid4

from sqlalchemy import (
    CHAR,
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Enum,
    Executable,
    Index,
    Insert,
    Integer,
    LargeBinary,
    String,
    Table,
    Update,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    text,
    type_coerce,
)
from sqlalchemy.dialects.mysql import dialect
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType

from ..errors import JobQueueError
from .after_commit import TransactionHooks, add_hooks, fetch_all, hooks_of
from .capabilities import Meaning, OwnerState, Process, Server
from .clock import LONG_AGO, UtcText, clock_default, utc_now
from .connections import driver_errors
from .database import Database, SerialKeyLocks, plain_type, sorted_by_name
from .expressions import TableExpression
from .named_locks import ConnectionLocks, Holder, Key, digest, slug
from .watched_connection import Limits

log = logging.getLogger("sa_jobqueue.claim")

FORCE_PRIMARY = "FORCE INDEX (PRIMARY)"

#: What the number of an error means.
_MEANINGS: dict[int, tuple[Meaning, ...]] = {
    3: ("shortage",),  # an error of a file
    1020: ("transient",),  # record has changed since last read
    1021: ("shortage",),  # disk full
    1026: ("shortage",),  # an error of a file
    1030: ("shortage",),  # an error of the storage engine
    1037: ("shortage",),  # out of memory
    1038: ("shortage",),  # out of memory
    1041: ("shortage",),  # out of memory
    1044: ("refused_login",),
    1045: ("refused_login",),
    1047: ("transient",),  # a node of Galera that is not ready
    1049: ("refused_login",),  # no such database
    1109: ("missing_table",),  # in information_schema
    1114: ("shortage",),  # table full
    1142: ("mistake",),  # no privilege for a table
    1143: ("mistake",),  # no privilege for a column
    1146: ("missing_table",),
    1176: ("missing_index",),
    1180: ("transient",),  # COMMIT failed
    1205: ("lock_timeout", "transient"),
    1213: ("transient",),  # deadlock
    1290: ("read_only", "shortage"),  # an option of the server forbids it
    1305: ("transient",),  # does not exist
    1698: ("refused_login",),
    1792: ("read_only", "shortage"),
    1836: ("read_only", "shortage"),
    1969: ("time_limit",),  # MariaDB: max_statement_time is over
    3024: ("time_limit",),  # MySQL: max_execution_time is over
    3101: ("transient",),  # Group Replication's certification
    3572: ("lock_timeout", "transient"),  # MySQL's NOWAIT
}

#: What the message must say, too.
_SAYING = {
    1180: re.compile("149"),  # the storage engine's deadlock
    1290: re.compile("read"),  # read_only or another one
    # After a deadlock SQLAlchemy rolls back to a savepoint that went with the transaction, and
    # this error hides that of the deadlock.
    1305: re.compile("^SAVEPOINT"),
}


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

    #: The SELECT that tells the level of the open transaction; see :func:`running_level`.
    level_question: ClassVar[str]

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
        if not _are_primary(table, keys):
            return delete(table)
        # Only the multi-table form takes a hint.
        return delete(table).prefix_with(_FromTable(table)).with_hint(FORCE_PRIMARY)

    def comparable(self, expression: Any) -> Any:
        # ORDER BY sorts an ENUM by the numbers of its words, but < compares the words.
        if isinstance(expression.type, Enum) and expression.type.native_enum:
            if isinstance(expression, BindParameter):
                return func.field(expression, *expression.type.enums)
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
        waits = dict.fromkeys(_LOCK_TIMEOUTS, seconds)
        most = max(1, limit // self.limit_unit)  # 0 would be no limit
        return _variables_set(connection, {self.statement_limit: most, **waits})

    def told_backend(self, driver: Any) -> int | None:
        # PyMySQL and mysqlclient; the connectors of MySQL and of MariaDB.
        found = getattr(driver, "thread_id", None) or getattr(driver, "connection_id", None)
        told = found() if callable(found) else found
        return told if isinstance(told, int) else None

    def end_session(self, connection: Connection, process: int, quiet: timedelta) -> None:
        listed = {row.Id: row for row in connection.exec_driver_sql("SHOW PROCESSLIST")}
        own = listed[self.backend(connection)]
        other = listed.get(process)
        if (
            other is not None
            and (other.User, other.db) == (own.User, own.db)
            and other.Time >= int(quiet.total_seconds())
        ):
            connection.exec_driver_sql(f"KILL {process:d}")

    def backend(self, connection: Connection) -> int | None:
        # 32 bits, since the handshake has room for no more. And not a plain SELECT
        # CONNECTION_ID(), which ProxySQL answers by itself.
        number = connection.exec_driver_sql("SELECT CONNECTION_ID() & 0xFFFFFFFF").scalar_one()
        return int(number)

    def lock_timeout(self, connection: Connection) -> timedelta | None:
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
            found = connection.execute(
                text(
                    "SELECT LOWER(variable_name), variable_value, "
                    "IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE()) "
                    f"FROM {self.global_variables} WHERE variable_name IN :names"
                ).bindparams(
                    bindparam("names", (*self.identified_by, *_IN_CLUSTER), expanding=True)
                )
            ).all()
        except DBAPIError as error:  # a look-alike may lack the table, as OceanBase's seekdb does
            if error.orig is None or "missing_table" not in self.meanings(error.orig):
                raise
            return None
        variables = {name: value for name, value, _ in found}
        return Server.identified_by(
            self.title,
            *(variables.get(name, "") for name in self.identified_by),
            found[0][2],
            alone=all(variables.get(name, "") in {"", "none"} for name in _IN_CLUSTER),
        )

    def own_process(self, connection: Connection) -> Process:
        # Both times are of this statement, so their difference neither jitters nor changes
        # when the clock is set: that of the server's start.
        own = connection.exec_driver_sql(
            "SELECT CONNECTION_ID(), UNIX_TIMESTAMP() - CAST(variable_value AS SIGNED) "
            f"FROM {self.global_status} WHERE variable_name = 'Uptime'"
        ).one()
        return Process(*map(int, own))

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        own = self.own_process(connection)
        listed = _listed(connection, {own.id, *(process.id for process in processes)})
        if own.id not in listed:  # the list hides even this connection
            return super().process_states(connection, processes)
        gone = OwnerState.DEAD if sees_everybody(connection) else OwnerState.UNKNOWN

        def state(process: Process) -> OwnerState:
            if abs(process.started - own.started) > _RESTART_TOLERANCE:
                return OwnerState.DEAD
            return OwnerState.ALIVE if process.id in listed else gone

        return {process: state(process) for process in processes}

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

    # -- errors ---------------------------------------------------------

    @classmethod
    def meanings(cls, error: BaseException) -> tuple[Meaning, ...]:
        number, *message = error.args or (None,)
        if not isinstance(number, int):
            return ()
        if number in _SAYING and not _SAYING[number].search(" ".join(map(str, message))):
            return ()
        return _MEANINGS.get(number, ())

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


# -- isolation levels --------------------------------------------------

# The isolation level of a session and that of the running transaction differ after SET TRANSACTION,
# which changes the level of the next transaction alone. The server tells everybody the level of
# their session. That of a transaction it tells only to users with a privilege, so a claim that
# begins its transaction sets it, and need not ask.

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

_CANNOT_CHANGE_NOW = 1568  # a transaction is already in progress

#: No privilege for the table, the column, the database; and no global one such as PROCESS.
DENIED = {1142, 1143, 1044, 1227}

_IS_READ_COMMITTED = "sa_jobqueue.is_read_committed"
_IS_HIDDEN = "sa_jobqueue.transactions_are_hidden"


def begin_read_committed(connection: Connection) -> bool:
    """Make the next transaction READ COMMITTED; False if one is open already.

    Only the server knows whether a transaction is open (a SELECT does not update the
    drivers' flags), so we try.
    """
    try:
        connection.exec_driver_sql(READ_COMMITTED)
    except Exception as error:  # a handle_error listener may raise what it likes
        if not _has_code(error, {_CANNOT_CHANGE_NOW}):
            raise
        return False
    return True


def session_is_read_committed(connection: Connection, variable: str) -> bool:
    """Tell whether the session's own level is READ COMMITTED; asked once per connection."""
    option = connection.get_execution_options().get("isolation_level")
    if option is not None:  # not remembered: the pool restores the connection's own level
        return bool(option == "READ COMMITTED")
    info = connection.info
    if _IS_READ_COMMITTED not in info:
        info[_IS_READ_COMMITTED] = session_level(connection, variable) == "READ COMMITTED"
    return bool(info[_IS_READ_COMMITTED])


def session_level(connection: Connection, variable: str) -> str:
    """Ask for the level that the session's transactions begin with."""
    asked = variable.replace("@@", "@@session.")
    return _words(connection.exec_driver_sql(f"SELECT {asked}").scalar_one())


def running_level(connection: Connection, question: str) -> str | None:
    """Ask for the level of the transaction that is open; None: the server does not tell."""
    info: dict[Any, Any] = connection.info
    if _IS_HIDDEN in info:
        return None
    try:
        told = connection.exec_driver_sql(question.format(mark=uuid4().hex)).scalar()
    except Exception as error:  # as above
        if not _has_code(error, DENIED):
            raise
        info[_IS_HIDDEN] = True
        return None
    return None if told is None else _words(told)


def _has_code(error: Exception, codes: set[int]) -> bool:
    """Tell whether the server's error is one of these."""
    return any(codes.intersection(cause.args[:1]) for cause in driver_errors(error))


def _words(level: Any) -> str:
    return str(level).replace("-", " ").upper()


# -- statements of its own ---------------------------------------------


class _FromTable(TableExpression[Any]):
    __visit_name__ = "sa_jobqueue_table_name"
    inherit_cache = True
    type = NullType()


@compiles(_FromTable)
def _from_table(element: _FromTable, compiler: Any, **kw: Any) -> str:
    name: str = compiler.preparer.format_table(element.table)
    return name


class InsertNew(Insert):
    """An INSERT that skips rows whose keys exist already.

    Not INSERT IGNORE: that turns other errors into warnings too. And not the dialect's
    own ON DUPLICATE KEY UPDATE: it puts an alias behind VALUES, and then PyMySQL 1.1 and
    its kin send the rows one by one.
    """

    inherit_cache = True


@compiles(InsertNew)
def _insert_new(statement: InsertNew, compiler: Any, **kw: Any) -> str:
    plain = compiler.visit_insert(statement, **kw)
    same = compiler.preparer.format_column(_settable(statement.table))
    return f"{plain} ON DUPLICATE KEY UPDATE {same} = {same}"


def _settable(table: Any) -> Column[Any]:
    """Find a column that can be set to its own value.

    Not a generated number: for two rows of one statement with the same key, MySQL refuses
    it with error 1869. And not a column that an INSERT must name: where the INSERT did not,
    MariaDB 10.11 was seen to put an empty text into it.
    """
    generated = table.autoincrement_column
    settable = [column for column in table.c if column is not generated and not column.computed]
    return next(filter(_may_be_missing, settable), settable[0])


def _may_be_missing(column: Column[Any]) -> bool:
    """Tell whether an INSERT may leave the column out."""
    return bool(column.nullable or column.default or column.server_default)


# -- time limits -------------------------------------------------------

#: How long a connection waits for a row, and for the definition of a table.
_LOCK_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")


def waiting_at_most(connection: Connection, time: timedelta) -> AbstractContextManager[None]:
    """Inside, give up on locks of rows and tables after this time, at least one second."""
    return _variables_set(
        connection, dict.fromkeys(_LOCK_TIMEOUTS, max(1, round(time.total_seconds())))
    )


@contextmanager
def _variables_set(connection: Connection, values: Mapping[str, float]) -> Iterator[None]:
    """Inside, variables of the server's session have these values."""
    asked = ", ".join(f"@@SESSION.{name}" for name in values)
    own = connection.exec_driver_sql(f"SELECT {asked}").one()
    _set(connection, values)
    try:
        yield
    finally:
        if not connection.invalidated:
            _set(connection, dict(zip(values, own, strict=True)))


def _set(connection: Connection, values: Mapping[str, float]) -> None:
    assignments = ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
    connection.exec_driver_sql(f"SET {assignments}")


# -- serial keys -------------------------------------------------------

#: The name of this module's hooks on a connection.
_HOOKS = "serial key locks"

#: Locks that one statement takes or gives back.
_KEYS_AT_ONCE = 200

#: A name may have 64 characters: 12 say what it is, 40 are a hash.
_PREFIX, _KEY_HASHED = "sa_jobqueue:", 40


class InnoDBSerialKeyLocks(SerialKeyLocks):
    """``GET_LOCK`` and ``RELEASE_LOCK``.

    InnoDB's row locks cannot do it: a key has no row of its own. GET_LOCK's lock belongs to the
    session, so it is given back after the outermost COMMIT or ROLLBACK. GET_LOCK counts how
    often a session takes a lock, so within a transaction each lock is taken once only.
    """

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # CONCAT is NULL where one of its parts is: such a row has no key.
        ordered = sorted_by_name(columns)
        names = ",".join(str(column.expression.name) for column in ordered)
        words = func.concat(TableName(table), _literal(f":{names}"), *_parts(ordered))
        return func.concat(
            _literal(_PREFIX), func.left(func.sha2(words, 256), _KEY_HASHED), type_=CHAR
        )

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        held = _held_by(connection)
        held.release_doubtful(connection)
        new = [token for token in dict.fromkeys(tokens) if token not in held.names]
        for start in range(0, len(new), _KEYS_AT_ONCE):
            held.take(connection, new[start : start + _KEYS_AT_ONCE])
        return held.names & set(tokens)

    def statement(self) -> Executable:
        return text(_calling("GET_LOCK({}, 0)", [f"{_PREFIX}.."]))


class HeldKeys(TransactionHooks):
    """The keys that a connection has locked in its transaction.

    Attributes:
        names: the names of their locks.
        doubtful: names of locks that we may have or not: a statement that takes them or
            gives them back was interrupted.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.doubtful: set[str] = set()

    def take(self, connection: Connection, names: Sequence[str]) -> None:
        """Take the locks that are free."""
        self.doubtful.update(names)
        answers = connection.exec_driver_sql(_calling("GET_LOCK({}, 0)", names)).one()
        self.names.update(name for name, had in zip(names, answers, strict=True) if had)
        self.doubtful.difference_update(names)

    def release_doubtful(self, connection: Connection) -> None:
        """Give back the doubtful locks: if one were taken twice, one release would not free it."""
        self._give(lambda statement: connection.exec_driver_sql(statement).all())

    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Give everything back."""
        self.doubtful |= self.names
        self.names.clear()
        self._give(partial(fetch_all, driver))

    def _give(self, run: Callable[[str], object]) -> None:
        names = sorted(self.doubtful)
        for start in range(0, len(names), _KEYS_AT_ONCE):
            run(_calling("RELEASE_LOCK({})", names[start : start + _KEYS_AT_ONCE]))
        self.doubtful.clear()

    def end_interrupted(self) -> None:
        """Keep the locks: either they are gone with the connection, or a ROLLBACK follows."""

    def after_end_failed(self, error: Exception) -> None:
        """Log it. If the connection is broken, the server has freed the locks."""
        log.warning("locks of serial keys could not be freed: %s", error)

    def on_return(self, driver: Any) -> None:
        """Give back what the last transaction left, say because its connection was dropped."""
        if self.names or self.doubtful:
            driver.rollback()
            self.after_end(driver, committed=False)


def _held_by(connection: Connection) -> HeldKeys:
    held = hooks_of(connection, _HOOKS)
    if held is None:
        held = HeldKeys()
        add_hooks(connection, _HOOKS, held)
    assert isinstance(held, HeldKeys)
    return held


def _calling(call: str, names: Iterable[str]) -> str:
    """Call a lock function for each name; the server made the names of letters and digits."""
    return "SELECT " + ", ".join(call.format(f"'{name}'") for name in names)


def _parts(columns: Iterable[Any]) -> Iterable[ColumnElement[Any]]:
    for column in columns:
        yield _literal(":")
        yield _text_of(column)


def _text_of(column: Any) -> ColumnElement[Any]:
    """Return a text that is the same for values that are equal here, maybe 'a', 'A' and 'á'."""
    kind = plain_type(column.type)
    if isinstance(kind, String):
        return func.hex(func.weight_string(func.rtrim(column)))
    if isinstance(kind, LargeBinary):
        return func.hex(column)
    return func.hex(cast(column, CHAR))


def _literal(text: str) -> ColumnElement[str]:
    return literal_column("'" + text.replace("'", "''").replace("\\", "\\\\") + "'", String())


class TableName(TableExpression[str]):
    """A table's database and name as one string, since locks are shared by the whole server."""

    __visit_name__ = "sa_jobqueue_table_name"
    inherit_cache = True
    type = String()


@compiles(TableName, "mysql", "mariadb")
def _table_name(element: TableName, compiler: Any, **kw: Any) -> str:
    # The schema stands apart from the name: SQLAlchemy puts a translated one into the text when
    # the statement runs, and a worker whose default database it is must compute the same text.
    # Without the backquotes: so names that differ only by them share locks, which does no harm.
    preparer = compiler.preparer
    schema = preparer.schema_for_object(element.table)
    database = "DATABASE()" if schema is None else _quoted(preparer.quote_schema(schema))
    name = _quoted(preparer.format_table(element.table, use_schema=False))
    return f"HEX(LOWER(REPLACE(CONCAT({database}, '.', {name}), '`', '')))"


def _quoted(name: str) -> str:
    """Write a name as a string."""
    escaped = name.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


# -- named locks -------------------------------------------------------

_READABLE, _HASHED = 31, 32  # and a colon: 64, the longest name that the server takes

#: Seconds between two tries in the last second of a wait: MySQL's GET_LOCK waits whole seconds.
_AGAIN = 0.02

#: Locks that one statement asks for.
_NAMES_AT_ONCE = 500

# In lower case where the server's file system ignores case: clients may have spelled the
# name of the same database differently.
_DATABASE = "SELECT IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"

_TAKE = text("SELECT GET_LOCK(:key, :seconds)")
_GIVE = text("SELECT RELEASE_LOCK(:key)")
_HOLDS = text("SELECT IS_USED_LOCK(:key) = CONNECTION_ID()")
_HOLDER = text(
    "SELECT lock_of.id, p.USER, p.HOST FROM (SELECT IS_USED_LOCK(:key) AS id) AS lock_of"
    " LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = lock_of.id"
)


class InnoDBNamedLocks(ConnectionLocks):
    """Locks of one database, by ``GET_LOCK``.

    Its names are shared by the whole server, at most 64 characters long, and ignore case. So
    the server gets a readable part and a hash of the database's and the lock's name. GET_LOCK
    is re-entrant within a session: so each lock has a connection of its own.
    """

    limits: ClassVar[Limits] = Limits(silence=timedelta(seconds=585))
    wait: ClassVar[float] = 1.0

    def __init__(self, database: Database, *, statement_limit: str) -> None:
        super().__init__(database)
        self._statement_limit = statement_limit

    def prepare(self, connection: Connection) -> None:
        seconds = self.limits.silence // timedelta(seconds=1)
        connection.exec_driver_sql(
            f"SET SESSION wait_timeout = {seconds}, {self._statement_limit} = 0"
        )

    def key(self, connection: Connection, name: str) -> Key:
        return self.keys(connection, [name])[name]

    def keys(self, connection: Connection, names: Iterable[str]) -> dict[str, str]:
        """Return what the server calls these locks, by their names."""
        database = connection.exec_driver_sql(_DATABASE).scalar() or ""
        return {
            name: f"{slug(name, _READABLE)}:{digest(database, name).hex()[:_HASHED]}"
            for name in names
        }

    def take(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        whole = int(seconds)
        if self._granted(connection, key, whole):
            return True
        if not whole:
            time.sleep(min(_AGAIN, seconds))
        return False

    def give(self, connection: Connection, *, key: Key) -> bool:
        return bool(connection.scalar(_GIVE, {"key": key}))

    def holds(self, connection: Connection, *, key: Key) -> bool:
        return bool(connection.scalar(_HOLDS, {"key": key}))

    def find_holder(self, connection: Connection, key: Key) -> Holder | None:
        process, user, host = connection.execute(_HOLDER, {"key": key}).one()
        return None if process is None else Holder(process=process, user=user, host=host)

    def _granted(self, connection: Connection, key: Key, seconds: int) -> bool:
        answer = connection.scalar(_TAKE, {"key": key, "seconds": seconds})
        if answer is None:
            raise JobQueueError("The server ended the wait for a lock: GET_LOCK returned NULL.")
        return bool(answer)

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        keys = list(self.keys(connection, names).items())
        held: set[str] = set()
        for start in range(0, len(keys), _NAMES_AT_ONCE):
            held.update(_held_among(connection, keys[start : start + _NAMES_AT_ONCE]))
        return held


def _held_among(connection: Connection, keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Ask by one statement which locks somebody has, and return their names."""
    bound = {f"key_{number}": key for number, (_, key) in enumerate(keys)}
    asked = ", ".join(f"IS_USED_LOCK(:{parameter})" for parameter in bound)
    holders = connection.execute(text(f"SELECT {asked}"), bound).one()
    return (name for (name, _), holder in zip(keys, holders, strict=True) if holder is not None)


# -- owners ------------------------------------------------------------

_NOT_ALLOWED = 1227

_RESTART_TOLERANCE = 2  # seconds

#: The variables that only nodes of a cluster have set: Galera, Group Replication.
_IN_CLUSTER = ("wsrep_provider", "group_replication_group_name")


def _listed(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return which of the connections are in the list."""
    found = connection.execute(
        text("SELECT id FROM information_schema.PROCESSLIST WHERE id IN :ids").bindparams(
            bindparam("ids", tuple(ids), expanding=True, type_=BigInteger)
        )
    )
    return set(found.scalars())


def sees_everybody(connection: Connection) -> bool:
    """Tell whether this connection has the PROCESS privilege.

    Found out by a query that needs it. SHOW GRANTS is not enough: a connection keeps the
    privileges with which it began, even when the user's privileges change later.
    """
    try:
        connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.INNODB_CMP")
    except DBAPIError as error:
        if error.orig is None or error.orig.args[:1] != (_NOT_ALLOWED,):
            raise
        return False
    return True
