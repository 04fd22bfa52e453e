"""What MySQL and MariaDB share: InnoDB, its locks and its isolation levels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    CHAR,
    BigInteger,
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
    bindparam,
    cast,
    delete,
    text,
    type_coerce,
)
from sqlalchemy.dialects.mysql import dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from ..capabilities import Database
from ..clock import ReadMoment, utc_now
from ..drivers import driver_connection
from ..owner_liveness import OwnerState, Process, Server
from .inserts import InsertNew
from .key_locks import InnoDBKeyLocks
from .named_locks import InnoDBLocks

_CANNOT_CHANGE_NOW = 1568  # a transaction is already in progress
_NOT_ALLOWED = 1227

_RESTART_TOLERANCE = 2  # seconds

_LOCKS_AT_ONCE = 500

#: The variables that only nodes of a cluster have set: Galera, Group Replication.
_IN_CLUSTER = ("wsrep_provider", "group_replication_group_name")

FORCE_PRIMARY = "FORCE INDEX (PRIMARY)"

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

_READS_COMMITS = "sa_jobqueue.reads_commits"


def _are_primary(table: Table, keys: Sequence[Column[Any]]) -> bool:
    """Tell whether columns are the table's primary key: a mapper's may be another one."""
    return bool(keys) and set(keys) == set(table.primary_key.columns)


class DeleteByKey(Delete):
    """A DELETE bound to the primary key: only that of several tables takes a hint."""

    inherit_cache = True


@compiles(DeleteByKey)
def _delete_by_key(statement: DeleteByKey, compiler: Any, **kw: Any) -> str:
    plain: str = compiler.visit_delete(statement, **kw)
    head, where, criteria = plain.partition(" WHERE ")
    table = head.removeprefix("DELETE FROM ")
    return f"DELETE {table} FROM {table} {FORCE_PRIMARY}{where}{criteria}"


class InnoDB(Database):
    """The common ground of MySQL and MariaDB."""

    ordered_update = True
    locks_what_it_scans = True
    keeps_one_key = True
    skips_repeats = True
    zero_is_a_key = False  # but: make one, unless NO_AUTO_VALUE_ON_ZERO
    checks_references_at_end = False
    joins_literals = False  # PyMySQL and mysqlclient: VALUES (%s, %s), and nothing else

    # Beside a short list of keys the optimizer may take the reap index, or the
    # claim index, and lock what it finds there in another order than others do.
    key_hint: ClassVar[str | None] = FORCE_PRIMARY

    begin_statement: ClassVar[str] = "START TRANSACTION"

    def begin(self, connection: Connection) -> bool:
        """Make the next transaction READ COMMITTED, where it is still the next.

        Under the default, REPEATABLE READ, the gap locks of consumers that
        claim and finish deadlock. The statement is for one transaction only:
        the session's own level is not touched, and nothing needs resetting.
        Only the server knows whether a transaction is open, so it is asked by
        trying: the drivers' flags are not brought up to date by a SELECT.

        An engine whose connections are READ COMMITTED already needs none of it.
        """
        if self._commits_are_read(connection):
            return True
        try:
            connection.exec_driver_sql(READ_COMMITTED)
        except DBAPIError as error:
            if error.orig is None or error.orig.args[:1] != (_CANNOT_CHANGE_NOW,):
                raise
            return False
        return True

    def _commits_are_read(self, connection: Connection) -> bool:
        """Tell whether the session's own level is READ COMMITTED: asked once, and remembered."""
        option = connection.get_execution_options().get("isolation_level")
        if option is not None:  # for this once: the pool puts the connection's own level back
            return bool(option == "READ COMMITTED")
        info = connection.info
        if _READS_COMMITS not in info:
            variable = self.isolation_variable.replace("@@", "@@session.")
            level = connection.exec_driver_sql(f"SELECT {variable}").scalar_one()
            info[_READS_COMMITS] = str(level).upper() == "READ-COMMITTED"
        return bool(info[_READS_COMMITS])

    def keeps_snapshot(self, connection: Connection) -> bool:
        return self._isolation(connection) in {"REPEATABLE READ", "SERIALIZABLE"}

    def sees_commits(self, connection: Connection) -> bool:
        return self._isolation(connection) == "READ COMMITTED"

    def _isolation(self, connection: Connection) -> str:
        level = connection.exec_driver_sql(f"SELECT {self.isolation_variable}").scalar_one()
        return str(level).replace("-", " ").upper()

    isolation_variable: ClassVar[str] = "@@transaction_isolation"

    @contextmanager
    def transaction_in_autocommit(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(READ_COMMITTED)
        with super().transaction_in_autocommit(connection):
            yield

    def moment(self) -> ColumnElement[Any]:
        # As text: PyMySQL takes 7 microseconds to make a datetime.
        return type_coerce(cast(utc_now(), CHAR(26)), ReadMoment())

    # -- inserts --------------------------------------------------------

    def insert_new(self, target: Any) -> Insert:
        return InsertNew(target)

    # -- writes by primary key ------------------------------------------

    # On a small table the optimizer scans it for a list of keys, waits for rows that
    # others have locked, and deadlocks with them. A queue that is almost empty is small.

    def update_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Update:
        plain = super().update_by_key(table, keys)
        return plain.with_hint(FORCE_PRIMARY) if _are_primary(table, keys) else plain

    def delete_by_key(self, table: Table, keys: Sequence[Column[Any]]) -> Delete:
        return DeleteByKey(table) if _are_primary(table, keys) else delete(table)

    def comparable(self, expression: Any) -> Any:
        # An ENUM is sorted by the numbers of its words, and compared by the words.
        if isinstance(expression.type, Enum) and expression.type.native_enum:
            return type_coerce(expression, Integer) + 0
        return expression

    # -- connections ----------------------------------------------------

    #: The variable that limits how long a statement may run.
    statement_limit: ClassVar[str]

    def told_backend(self, connection: Connection) -> int | None:
        # PyMySQL and mysqlclient; the connectors of MySQL and of MariaDB.
        driver = driver_connection(connection)
        found = getattr(driver, "thread_id", None) or getattr(driver, "connection_id", None)
        told = found() if callable(found) else found
        return told if isinstance(told, int) else None

    def backend(self, connection: Connection) -> int | None:
        # The handshake has room for 32 bits. And ProxySQL answers a plain SELECT
        # CONNECTION_ID() by itself.
        number = connection.exec_driver_sql("SELECT CONNECTION_ID() & 0xFFFFFFFF").scalar_one()
        return int(number)

    def named_locks(self) -> InnoDBLocks:
        return InnoDBLocks(self, statement_limit=self.statement_limit)

    def key_locks(self) -> InnoDBKeyLocks:
        return InnoDBKeyLocks()

    def lock_wait(self, connection: Connection) -> timedelta:
        seconds = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        return timedelta(seconds=int(seconds))

    def pause(self, connection: Connection, time: timedelta) -> None:
        connection.exec_driver_sql(f"DO SLEEP({time.total_seconds():.6f})")

    # -- owners ---------------------------------------------------------

    global_variables: ClassVar[str]
    global_status: ClassVar[str]
    process_list: ClassVar[str] = "information_schema.PROCESSLIST"

    #: The variables that tell one server from another.
    identified_by: ClassVar[tuple[str, ...]]

    def server_of(self, connection: Connection) -> Server | None:
        asked = (*self.identified_by, *_IN_CLUSTER)
        found = connection.execute(
            text(
                "SELECT LOWER(variable_name), variable_value, "
                "IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE()) "
                f"FROM {self.global_variables} WHERE variable_name IN :names"
            ).bindparams(bindparam("names", asked, expanding=True))
        ).all()
        variables = {name: value for name, value, _ in found}
        return Server.identified_by(
            self.title,
            *(variables.get(name, "") for name in self.identified_by),
            found[0][2],
            alone=all(variables.get(name, "") in {"", "none"} for name in _IN_CLUSTER),
        )

    def held_locks(self, connection: Connection, names: Iterable[str]) -> set[str]:
        keys = list(self.named_locks().keys(connection, names).items())
        held: set[str] = set()
        for start in range(0, len(keys), _LOCKS_AT_ONCE):
            held.update(_held_among(connection, keys[start : start + _LOCKS_AT_ONCE]))
        return held

    def own_process(self, connection: Connection) -> Process | None:
        # Both times are those of this statement: the difference does not tremble,
        # nor does it change with the clock.
        own = connection.exec_driver_sql(
            "SELECT CONNECTION_ID(), UNIX_TIMESTAMP() - CAST(variable_value AS SIGNED) "
            f"FROM {self.global_status} WHERE variable_name = 'Uptime'"
        ).one()
        return Process(*map(int, own))

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        own = self.own_process(connection)
        assert own is not None
        listed = self._listed(connection, {own.id, *(process.id for process in processes)})
        if own.id not in listed:
            return super().process_states(connection, processes)
        gone = OwnerState.DEAD if self.sees_everybody(connection) else OwnerState.UNKNOWN

        def state(process: Process) -> OwnerState:
            if abs(process.started - own.started) > _RESTART_TOLERANCE:
                return OwnerState.DEAD
            return OwnerState.ALIVE if process.id in listed else gone

        return {process: state(process) for process in processes}

    def _listed(self, connection: Connection, ids: Collection[int]) -> set[int]:
        """Return which of the connections are in the list."""
        found = connection.execute(
            text(f"SELECT id FROM {self.process_list} WHERE id IN :ids").bindparams(
                bindparam("ids", tuple(ids), expanding=True, type_=BigInteger)
            )
        )
        return set(found.scalars())

    def sees_everybody(self, connection: Connection) -> bool:
        """Tell whether this connection has the PROCESS privilege.

        Asked by trying what needs it. Grants tell less: a connection keeps the
        privileges that it began with, also when they have changed since.
        """
        try:
            connection.exec_driver_sql("SELECT COUNT(*) FROM information_schema.INNODB_CMP")
        except DBAPIError as error:
            if error.orig is None or error.orig.args[:1] != (_NOT_ALLOWED,):
                raise
            return False
        return True

    # With few jobs among many done rows the optimizer reckons that a few rows in the order
    # of the primary key are found sooner by walking over it: among 5 million, a claim took
    # 4 seconds on MariaDB.

    def forced_index(self, index: Index) -> str | None:
        return f"FORCE INDEX ({self.index_name(index)})"

    order_hint: ClassVar[str | None] = "IGNORE INDEX FOR ORDER BY (PRIMARY)"

    @staticmethod
    def index_name(index: Index) -> str:
        """Return an index's name, quoted, as the naming convention makes it."""
        return dialect().identifier_preparer.format_index(index)

    @classmethod
    def is_missing_index(cls, error: BaseException) -> bool:
        return error.args[:1] == (1176,)

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return error.args[:1] == (1205,)

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        # Deadlock; lock wait timeout; record has changed since last read.
        return error.args[:1] in {(1213,), (1205,), (1020,)}


def _held_among(connection: Connection, keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Return the names of those locks that somebody has, in one statement."""
    bound = {f"key_{number}": key for number, (_, key) in enumerate(keys)}
    asked = ", ".join(f"IS_USED_LOCK(:{parameter})" for parameter in bound)
    holders = connection.execute(text(f"SELECT {asked}"), bound).one()
    return (name for (name, _), holder in zip(keys, holders, strict=True) if holder is not None)


@compiles(utc_now, "mysql", "mariadb")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    if not element.clauses.clauses:
        return "UTC_TIMESTAMP(6)"
    shift = compiler.process(element.clauses, **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {shift} MICROSECOND)"
