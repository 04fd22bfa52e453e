"""MySQL and MariaDB: what they share is InnoDB with its locks and isolation levels.

MySQL has SKIP LOCKED since 8.0.1, and no RETURNING. MariaDB has SKIP LOCKED since 10.6, no FOR
UPDATE OF, and no RETURNING beside an index hint.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
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
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType

from ..errors import JobQueueError
from .clock import UtcText, utc_now
from .connections import TransactionHooks, driver_errors, fetch_all, hooks_of, listen_to
from .database import Database, TableExpression, Version, plain_type, sorted_by_name
from .named_locks import Key, OwnerState, Process, Server, digest, slug

log = logging.getLogger("sa_jobqueue.claim")

FORCE_PRIMARY = "FORCE INDEX (PRIMARY)"

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
    locks_keys = True
    time_digits = 0
    joins_literals = False  # PyMySQL and mysqlclient join only VALUES (%s, %s)
    begin_statement = "START TRANSACTION"

    # For a short list of keys the optimizer may choose the reap index or the claim index,
    # and lock rows in another order than other transactions do.
    key_hint = FORCE_PRIMARY

    #: How a percent sign is written for the driver: drivers that format parameters with %
    #: take it doubled.
    percent = "%%"

    @classmethod
    def of(cls, dialect: Dialect) -> Self:
        database = super().of(dialect)
        database.percent = "%%" if dialect.paramstyle in ("format", "pyformat") else "%"
        return database

    error_codes: ClassVar[Mapping[str, Collection[Any]]] = {
        "lock_timeout": [1205, 3572],  # the second: MySQL's NOWAIT
        "missing_index": [1176],
        "missing_table": [1109, 1146],  # the first: in information_schema
        "mistake": [1142, 1143],  # no privilege for a table, for a column
        "read_only": [1290, 1792, 1836],
        "refused_login": [1044, 1045, 1049, 1698],
        # Files, disk full, storage engine, three times memory, table full, an option forbids it.
        "shortage": [3, 1021, 1026, 1030, 1037, 1038, 1041, 1114, 1290, 1792, 1836],
        "time_limit": [1969, 3024],  # MariaDB's max_statement_time, MySQL's max_execution_time
        # Record changed, a node of Galera that is not ready, COMMIT failed, lock wait, deadlock,
        # savepoint is gone, Group Replication's certification, NOWAIT.
        "transient": [1020, 1047, 1180, 1205, 1213, 1305, 3101, 3572],
    }

    @classmethod
    def meanings(cls, error: BaseException) -> set[str]:
        number, *message = error.args or (None,)
        if not isinstance(number, int):
            return set()
        if number in _SAYING and not _SAYING[number].search(" ".join(map(str, message))):
            return set()
        return cls.meanings_of(number)

    # -- isolation levels -----------------------------------------------

    def begin(self, connection: Connection) -> bool:
        """Make the next transaction READ COMMITTED, unless one is open already.

        Under the default, REPEATABLE READ, claims and finishes of several consumers
        deadlock on gap locks. The statement changes one transaction only: the session's
        own level stays, and nothing needs resetting.

        Connections that are READ COMMITTED already skip the statement.
        """
        return self._session_is_read_committed(connection) or _begin_read_committed(connection)

    def keeps_snapshot(self, connection: Connection) -> bool:
        return self._session_level(connection) in {"REPEATABLE READ", "SERIALIZABLE"}

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        if begun and not self._session_is_read_committed(connection):
            return True  # begin() has made it so
        # The caller may have said SET TRANSACTION: what begins now is READ COMMITTED all the same,
        # and of what is open already the server must tell.
        if _begin_read_committed(connection):
            return True
        level = self._running_level(connection) or self._session_level(connection)
        return level == "READ COMMITTED"

    def _session_is_read_committed(self, connection: Connection) -> bool:
        """Tell whether the session's own level is READ COMMITTED; asked once per connection."""
        option = connection.get_execution_options().get("isolation_level")
        if option is not None:  # not remembered: the pool restores the connection's own level
            return bool(option == "READ COMMITTED")
        info: dict[Any, Any] = connection.info
        if _IS_READ_COMMITTED not in info:
            info[_IS_READ_COMMITTED] = self._session_level(connection) == "READ COMMITTED"
        return bool(info[_IS_READ_COMMITTED])

    def _session_level(self, connection: Connection) -> str:
        """Ask for the level that the session's transactions begin with."""
        asked = self.isolation_variable.replace("@@", "@@session.")
        return _words(connection.exec_driver_sql(f"SELECT {asked}").scalar_one())

    def _running_level(self, connection: Connection) -> str | None:
        """Ask for the level of the transaction that is open; None: the server does not tell."""
        info: dict[Any, Any] = connection.info
        if _IS_HIDDEN in info:
            return None
        question = self.level_question.format(mark=uuid4().hex)
        try:
            told = connection.exec_driver_sql(question).scalar()
        except Exception as error:  # a handle_error listener may raise what it likes
            if not has_code(error, DENIED):
                raise
            info[_IS_HIDDEN] = True
            return None
        return None if told is None else _words(told)

    isolation_variable = "@@transaction_isolation"

    #: The SELECT that tells the level of the open transaction; its mark is of this call.
    level_question: ClassVar[str]

    @contextmanager
    def transaction_in_autocommit(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(READ_COMMITTED)
        with super().transaction_in_autocommit(connection):
            yield

    def moment(self) -> ColumnElement[Any]:
        # As text: PyMySQL takes 7 microseconds to make a datetime.
        return type_coerce(cast(utc_now(), CHAR(26)), UtcText())

    # -- statements -----------------------------------------------------

    def insert_new(self, target: Any) -> Insert:
        return InsertNew(target)

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

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        return TableName(table)

    # With few jobs among many done rows the optimizer expects that walking over the primary
    # key finds a few rows in that order sooner: among 5 million rows, a claim took 4 seconds
    # on MariaDB.

    def forced_index(self, index: Index) -> str | None:
        # SQLAlchemy formats the hint of a SELECT with %, and the driver its text once more.
        return f"FORCE INDEX ({self.index_name(index)})".replace("%", "%%")

    order_hint = "IGNORE INDEX FOR ORDER BY (PRIMARY)"

    def index_name(self, index: Index) -> str:
        """Return an index's name as the naming convention makes it, quoted for the driver."""
        return _bare(mysql.dialect().identifier_preparer.format_index(index)).replace(
            "%", self.percent
        )

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

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        seconds = max(1, round(time.total_seconds()))
        return _variables_set(connection, dict.fromkeys(_LOCK_TIMEOUTS, seconds))

    def limit_waits_of_looks(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = 1")

    # 32 bits, since the handshake has room for no more. And not a plain SELECT
    # CONNECTION_ID(), which ProxySQL answers by itself.
    backend_question = "SELECT CONNECTION_ID() & 0xFFFFFFFF"
    lock_timeout_question = "SELECT @@innodb_lock_wait_timeout * 1000"
    pausing = "DO SLEEP({:.6f})"

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

    # -- owners ---------------------------------------------------------

    global_variables: ClassVar[str]
    global_status: ClassVar[str]

    #: The variables that differ from server to server.
    identified_by: ClassVar[tuple[str, ...]]

    to_know_owners = ", since it does not show its global variables"

    def server_of(self, connection: Connection) -> Server | None:
        try:
            found = connection.execute(
                text(
                    "SELECT LOWER(variable_name), variable_value, "
                    f"{_DATABASE} FROM {self.global_variables} WHERE variable_name IN :names"
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

    # -- named locks: GET_LOCK --------------------------------------------

    # Its names are shared by the whole server, at most 64 characters long, and ignore case. So
    # the server gets a readable part and a hash of the database's and the lock's name. GET_LOCK
    # is re-entrant within a session: so each lock has a connection of its own.

    lock_giving = text("SELECT RELEASE_LOCK(:key)")
    lock_holding = text("SELECT IS_USED_LOCK(:key) = CONNECTION_ID()")
    lock_holder_asking = text(
        "SELECT lock_of.id, p.USER, p.HOST FROM (SELECT IS_USED_LOCK(:key) AS id) AS lock_of"
        " LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = lock_of.id"
    )

    def prepare_lock(self, connection: Connection) -> None:
        seconds = self.lock_limits.silence // timedelta(seconds=1)
        connection.exec_driver_sql(
            f"SET SESSION wait_timeout = {seconds}, {self.statement_limit} = 0"
        )

    def lock_keys(self, connection: Connection, names: Iterable[str]) -> dict[str, Key]:
        database = connection.exec_driver_sql(f"SELECT {_DATABASE}").scalar() or ""
        return {
            name: f"{slug(name, _READABLE)}:{digest(database, name).hex()[:_HASHED]}"
            for name in names
        }

    def take_lock(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        whole = int(seconds)
        granted = connection.scalar(_TAKE, {"key": key, "seconds": whole})
        if granted is None:
            raise JobQueueError("The server ended the wait for a lock: GET_LOCK returned NULL.")
        if not granted and not whole:
            time.sleep(min(_AGAIN, seconds))
        return bool(granted)

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        keys = list(self.lock_keys(connection, names).items())
        held: set[str] = set()
        for start in range(0, len(keys), _NAMES_AT_ONCE):
            some = keys[start : start + _NAMES_AT_ONCE]
            asked = ", ".join(f"IS_USED_LOCK('{key}')" for _, key in some)
            holders = connection.exec_driver_sql(f"SELECT {asked}").one()
            held.update(
                name for (name, _), holder in zip(some, holders, strict=True) if holder is not None
            )
        return held

    # -- serial keys: GET_LOCK, too ---------------------------------------

    # InnoDB's row locks cannot do it: a key has no row of its own. GET_LOCK's lock belongs to the
    # session, so it is given back after the outermost COMMIT or ROLLBACK. GET_LOCK counts how
    # often a session takes a lock, so within a transaction each lock is taken once only.

    def serial_key(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # CONCAT is NULL where one of its parts is: such a row has no key.
        ordered = sorted_by_name(columns)
        names = ",".join(str(column.expression.name) for column in ordered)
        parts = [part for column in ordered for part in (_literal(":"), _text_of(column))]
        words = func.concat(TableName(table), _literal(f":{names}"), *parts)
        hashed = func.left(func.sha2(words, 256), _KEY_HASHED)
        return func.concat(_literal(_PREFIX), hashed, type_=CHAR)

    def lock_serial_keys(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        held = hooks_of(connection, HeldKeys, HeldKeys)
        known = held.names | held.doubtful
        new = [token for token in dict.fromkeys(tokens) if token not in known]
        for start in range(0, len(new), _KEYS_AT_ONCE):
            held.take(connection, new[start : start + _KEYS_AT_ONCE])
        return held.names & set(tokens)

    def serial_key_statement(self) -> Executable:
        return text(_calling("GET_LOCK({}, 0)", [f"{_PREFIX}.."]))


def _bare(quoted: str) -> str:
    """Return a quoted name as the server is to see it, without the driver's ``%%``."""
    return quoted.replace("%%", "%")


def _in_text(*names: str) -> str:
    """Return quoted names as they stand in a ``text()``, which doubles % and knows ``:name``."""
    return " ".join(_bare(name).replace(":", "\\:") for name in names)


def _are_primary(table: Table, keys: Sequence[Column[Any]]) -> bool:
    """Tell whether columns are the table's primary key: a mapper's may differ from it."""
    return bool(keys) and set(keys) == set(table.primary_key.columns)


# -- isolation levels --------------------------------------------------

# The isolation level of a session and that of the running transaction differ after SET TRANSACTION,
# which changes the level of the next transaction alone. The server tells everybody the level of
# their session. That of a transaction it tells only to users with a privilege, so a claim that
# begins its transaction sets it, and need not ask.

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

_CANNOT_CHANGE_NOW = 1568  # a transaction is already in progress

_IS_READ_COMMITTED = "sa_jobqueue.is_read_committed"
_IS_HIDDEN = "sa_jobqueue.transactions_are_hidden"


def _begin_read_committed(connection: Connection) -> bool:
    """Make the next transaction READ COMMITTED; False if one is open already.

    Only the server knows whether a transaction is open (a SELECT does not update the
    drivers' flags), so we try.
    """
    try:
        connection.exec_driver_sql(READ_COMMITTED)
    except Exception as error:  # a handle_error listener may raise what it likes
        if not has_code(error, {_CANNOT_CHANGE_NOW}):
            raise
        return False
    return True


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
    may_be_missing = (
        column for column in settable if column.nullable or column.default or column.server_default
    )
    return next(may_be_missing, settable[0])


# -- time limits -------------------------------------------------------

#: How long a connection waits for a row, and for the definition of a table.
_LOCK_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")


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

#: Locks that one statement takes or gives back.
_KEYS_AT_ONCE = 200

#: A name may have 64 characters: 12 say what it is, 40 are a hash.
_PREFIX, _KEY_HASHED = "sa_jobqueue:", 40


class HeldKeys(TransactionHooks):
    """The keys that a connection has locked in its transaction.

    Attributes:
        names: the names of their locks.
        doubtful: names of locks that we may have or not: a statement that takes them or gives them
            back was interrupted. They are taken by nobody until the transaction ends: one release
            would not free what is taken twice.
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

    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Give everything back."""
        names = sorted(self.names | self.doubtful)
        self.doubtful.update(self.names)
        self.names.clear()
        for start in range(0, len(names), _KEYS_AT_ONCE):
            some = names[start : start + _KEYS_AT_ONCE]
            fetch_all(driver, _calling("RELEASE_LOCK({})", some))
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


def _calling(call: str, names: Iterable[str]) -> str:
    """Call a lock function for each name; the server made the names of letters and digits."""
    return "SELECT " + ", ".join(call.format(f"'{name}'") for name in names)


def _text_of(column: Any) -> ColumnElement[Any]:
    """Return a text that is the same for values that are equal here, maybe 'a', 'A' and 'á'."""
    kind = plain_type(column.type)
    if isinstance(kind, String):
        return func.hex(func.weight_string(func.rtrim(column)))
    if isinstance(kind, LargeBinary):
        return func.hex(column)
    return func.hex(cast(column, CHAR))


def _literal(text: str) -> ColumnElement[str]:
    return literal_column(_quoted(text), String())


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


# -- privileges --------------------------------------------------------

_NOT_ALLOWED = 1227

#: No privilege for the table, the column, the database; and no global one such as PROCESS.
DENIED = {1142, 1143, 1044, 1227}


def has_code(error: Exception, codes: Collection[int]) -> bool:
    """Tell whether the server's error is one of these."""
    return any(set(cause.args[:1]) & {*codes} for cause in driver_errors(error))


def sees_everybody(connection: Connection) -> bool:
    """Tell whether this connection has the PROCESS privilege.

    Found out by a query that needs it. SHOW GRANTS is not enough: a connection keeps the
    privileges with which it began, even when the user's privileges change later.
    """
    try:
        connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.INNODB_CMP")
    except DBAPIError as error:
        if not has_code(error, {_NOT_ALLOWED}):
            raise
        return False
    return True


# -- named locks -------------------------------------------------------

_READABLE, _HASHED = 31, 32  # and a colon: 64, the longest name that the server takes

#: Seconds between two tries in the last second of a wait: MySQL's GET_LOCK waits whole seconds.
_AGAIN = 0.02

#: Locks that one statement asks for.
_NAMES_AT_ONCE = 500

# In lower case where the server's file system ignores case: clients may have spelled the
# name of the same database differently.
_DATABASE = "IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"

_TAKE = text("SELECT GET_LOCK(:key, :seconds)")


# -- owners ------------------------------------------------------------

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


# -- MySQL -------------------------------------------------------------

#: The SELECT of the open transaction's level: at once and exactly. It is on by default since 8.0.
_MYSQL_LEVEL = """
SELECT isolation_level FROM performance_schema.events_transactions_current
WHERE state = 'ACTIVE' AND thread_id = (
  SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()
)
"""


class MySQL(InnoDB):
    """MySQL 5.7 and later, by any driver."""

    title = "MySQL"
    minimum = (5, 7)

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.lock_of = self.descending_indexes = self.at_least(8, 0, 1)

    statement_limit = "max_execution_time"
    limit_unit = timedelta(milliseconds=1)
    level_question = _MYSQL_LEVEL
    global_variables = "performance_schema.global_variables"
    global_status = "performance_schema.global_status"
    identified_by = ("server_uuid", "aurora_server_id")

    def index_hint(self, index: Index) -> str | None:
        """Bind locking reads to the claim index.

        On a small or young table the optimizer scans and sorts instead, and InnoDB
        keeps all sorted rows locked: while one claimer had three of six rows, a second
        claimer was seen to get none. Where the table has no such index, MySQL ignores
        this comment; FORCE INDEX would be an error.
        """
        if not self.at_least(8, 0, 20) or index.table is None:
            return None
        preparer = mysql.dialect().identifier_preparer
        words = _in_text(preparer.quote(index.table.name), preparer.format_index(index))
        return f"/*+ INDEX({words}) */"


# -- MariaDB -----------------------------------------------------------

#: The SELECT of the open transaction's level: from a copy, which the server renews only if nobody
#: has read it for a tenth of a second. It shows the statement of each transaction, and so, by the
#: mark, whether it is new.
_MARIADB_LEVEL = """
SELECT trx_isolation_level FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id = CONNECTION_ID() AND LOCATE('{mark}', trx_query) > 0
"""


class MariaDB(InnoDB):
    """MariaDB 10.3 and later, under ``mariadb://`` and ``mysql://`` URLs alike."""

    title = "MariaDB"
    minimum = (10, 3)
    isolation_variable = "@@tx_isolation"
    level_question = _MARIADB_LEVEL

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.at_least(10, 6)
        self.descending_indexes = self.at_least(10, 8)

    def past_snapshot(self, connection: Connection) -> Mapping[str, Any]:
        if self._has_snapshot_isolation is None:
            asked = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"
            found = connection.exec_driver_sql(asked).first()
            self._has_snapshot_isolation = found is not None
        if not self._has_snapshot_isolation:
            return {}
        listen_to(connection, "before_cursor_execute", _without_setting, retval=True)
        return {_OPTION: True}

    #: Asked once for each server: each series knows the setting from another version on.
    _has_snapshot_isolation: bool | None = None

    statement_limit = "max_statement_time"
    limit_unit = timedelta(seconds=1)
    global_variables = "information_schema.GLOBAL_VARIABLES"
    global_status = "information_schema.GLOBAL_STATUS"

    # server_uid alone is not enough. It is made of a network card's address and the port:
    # containers on two hosts may have the same, and older servers have none.
    identified_by = (
        "server_uid",
        "server_id",
        "hostname",
        "port",
        "datadir",
    )

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        # server_version_info may begin with 5.5.5, a prefix for the replication protocol.
        version = getattr(dialect, "_mariadb_normalized_version_info", None)
        return version or getattr(dialect, "server_version_info", None)


# With innodb_snapshot_isolation, which is on by default since MariaDB 11.6, a REPEATABLE READ
# transaction that has read before may not lock a row that others have changed since then:
# error 1020, and the server has rolled the transaction back, so no statement can be tried
# again. It protects writes that were worked out from what was read. The verbs need no such
# protection: they name what they expect of a row, and lock it as it is now.
#
# So in a transaction that a verb did not begin, the statements of verbs run without the
# setting. It holds on for the caller's own statements.

#: The name of the execution option by which a statement is run without the setting.
_OPTION = "sa_jobqueue_past_snapshot"

_PAST_SNAPSHOT = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "

_LOCKING = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def _without_setting(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> tuple[str, Any]:
    options = {} if context is None else context.execution_options
    if _OPTION in options and _LOCKING.match(statement):
        statement = _PAST_SNAPSHOT + statement
    return statement, parameters
