"""PostgreSQL: one UPDATE claims, since its locking sub-select is sure to run only once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Executable,
    Insert,
    Integer,
    String,
    Table,
    TextClause,
    Uuid,
    any_,
    bindparam,
    cast,
    func,
    literal_column,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from ..capabilities import LOCK_WAIT, Version
from ..clock import naive_utc_now, utc_now
from ..connections import driver_connection
from ..database import Database
from ..owner_liveness import OwnerState, Process, Server
from . import owner_liveness
from .claim_lock import TableNumber, claim_lock
from .examination import PostgreSQLExamination
from .failed_transaction import has_failed, told_failure
from .integer_array import IntegerArray
from .named_locks import PostgreSQLNamedLocks
from .schema_changes import PostgreSQLSchemaChanges
from .serial_key_locks import PostgreSQLSerialKeyLocks
from .sqlstate import (
    DEADLOCK,
    IN_FAILED_TRANSACTION,
    INVALID_TEXT,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    READ_ONLY,
    SERIALIZATION_FAILURE,
    UNDEFINED_TABLE,
    login_is_refused,
    sqlstate,
)
from .statistics import analyze_if_grown, unanalyzed_rows

#: Where drivers keep the number of the server process: psycopg 2 and 3, asyncpg.
_PID_TOLD = ("info.backend_pid", "get_server_pid")

#: A host that loses its power or network does not close its connections, and by default the
#: server probes a silent one after two hours. With these settings it probes after 30 seconds,
#: and closes the connection when nothing answers for another 60.
SILENCE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
    "tcp_user_timeout": "90000",
}


_LOCK_TIMEOUT = "SELECT CAST(setting AS integer) FROM pg_settings WHERE name = 'lock_timeout'"

_LIMIT_LOCK_WAIT = text("""
SELECT set_config('lock_timeout', :limit, :of_transaction)
WHERE current_setting('lock_timeout') = '0'
""")

_BITMAPS_ONLY = text("""
SELECT current_setting('enable_seqscan') AS seqscan,
  current_setting('enable_indexscan') AS indexscan,
  current_setting('enable_bitmapscan') AS bitmapscan,
  current_setting('enable_sort') AS sort,
  set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true)
""")
_BY_INDEX_ONLY = text("""
SELECT current_setting('enable_seqscan') AS seqscan,
  current_setting('enable_indexscan') AS indexscan,
  current_setting('enable_bitmapscan') AS bitmapscan,
  current_setting('enable_sort') AS sort,
  set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
  set_config('enable_sort', :sorts, true)
""")
_ANY_SCANS = text("""
SELECT set_config('enable_seqscan', :seqscan, true),
  set_config('enable_indexscan', :indexscan, true),
  set_config('enable_bitmapscan', :bitmapscan, true),
  set_config('enable_sort', :sort, true)
""")


_CLAIM_DATE: ColumnElement[Any] = literal_column(
    "(SELECT clock_timestamp())", DateTime(timezone=True)
)

#: The setting that holds a text from one statement to a later one of its transaction.
_LEFT: ColumnElement[str] = literal_column("'sa_jobqueue.left'", String)

#: What the server's log says of a statement that has undone itself, before a number.
_UNDONE = "sa_jobqueue undoes this statement: claims were lost or renewed. Jobs it had finished:"


class PostgreSQL(Database):
    """PostgreSQL 13 and later, by any driver."""

    title = "PostgreSQL"
    minimum = (13,)
    product_question = "SELECT version()"

    skip_locked = True
    no_key_update = True
    lock_of = True
    lock_once = True
    update_returning = True
    delete_returning = True
    forgets_implied = True
    strays_to_key = True
    advisory_locks = True
    notifies = True
    returns_new = True
    repeats_keys = True
    leaves_texts = True

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.hashes_records = self.at_least(14)

    def refuses_commit(self, connection: Connection) -> bool:
        told = told_failure(connection.connection.dbapi_connection)
        if told is not None:
            return told
        try:
            # By the Connection, which raises if it is lost. asyncpg forgets its transaction then,
            # and SQLAlchemy would take the COMMIT for done.
            connection.exec_driver_sql("SELECT 1")
        except DBAPIError as error:
            if sqlstate(error.orig) != IN_FAILED_TRANSACTION:
                raise
            return True
        return False

    def driver_refuses_commit(self, driver: Any, errors: type[Exception]) -> bool:
        return has_failed(driver, errors)

    def told_backend(self, connection: Connection) -> int | None:
        driver = driver_connection(connection)
        for path in _PID_TOLD:
            found = driver
            for name in path.split("."):
                found = getattr(found, name, None)
            told = found() if callable(found) else found
            if isinstance(told, int):  # behind a pooler it may be negative, or 0 for none
                return told
        key = getattr(driver, "_backend_key_data", None)  # pg8000
        return int.from_bytes(key[:4], "big", signed=True) if isinstance(key, bytes) else None

    def backend(self, connection: Connection) -> int | None:
        number: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        return number

    def notice_silence(self, connection: Connection) -> None:
        settings = ", ".join(
            f"set_config('{name}', '{value}', false)" for name, value in SILENCE.items()
        )
        connection.exec_driver_sql(f"SELECT {settings}")

    def told_of_rows(self, connection: Connection, table: Table, rows: int) -> None:
        analyze_if_grown(connection, table, rows)

    def unanalyzed_rows(self, connection: Connection, table: Table) -> int:
        return unanalyzed_rows(connection, table)

    def claim_date(self) -> ColumnElement[Any]:
        # Read once for a statement, when the first of its rows is locked. By the time at which
        # the statement began, two claims could be equal: one that was rolled back, and one that
        # began in the same microsecond and came to the row later.
        return _CLAIM_DATE

    def leaving(self, text: ColumnElement[str]) -> ColumnElement[str]:
        return func.set_config(_LEFT, text, true(), type_=String)

    def left_text(self) -> ColumnElement[str]:
        return func.current_setting(_LEFT, true(), type_=String)

    def undoing(self, finished: ColumnElement[int]) -> ColumnElement[Any]:
        return cast(func.concat(literal_column(f"'{_UNDONE} '"), finished), Integer)

    @classmethod
    def is_undone(cls, error: BaseException) -> bool:
        return sqlstate(error) == INVALID_TEXT and _UNDONE in str(error)

    def insert_new(self, target: Any) -> Insert:
        return insert(target).on_conflict_do_nothing()

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        # An array is one parameter. Only for integers and UUIDs: an array might not find the
        # operators of other types. BIGINT, since the table's integers may have more bits than
        # the model's.
        kind: TypeEngine[Any] = BigInteger() if isinstance(key.type, Integer) else key.type
        if not isinstance(kind, BigInteger | Uuid) or not getattr(kind, "native_uuid", True):
            return super().key_is_in(key, parameter)
        array: TypeEngine[Any] = ARRAY(kind)
        given = IntegerArray() if isinstance(kind, BigInteger) else array
        return key == any_(cast(bindparam(parameter, type_=given), array))

    @contextmanager
    def by_index(self, connection: Connection) -> Iterator[None]:
        # The planner expects a third of all rows below a value that it does not know. To find
        # position 10 of 100,000 it read the whole table (16 ms instead of 1.6), or walked over
        # 40,000 done rows by the primary key, because the rows are stored in its order. With
        # bitmap scans the stored order counts for nothing, and the narrowest range is cheapest.
        with self._scans(connection, _BITMAPS_ONLY):
            yield

    @contextmanager
    def without_table_scans(
        self, connection: Connection, *, sorting: bool = False
    ) -> Iterator[None]:
        # To count 10,001 of 50,000 jobs the planner read the table from its beginning, where
        # 150,000 rows were done. Bitmaps are off too: they hold the whole range before the first
        # row of it is counted. Where few rows of many are unclaimed the planner expects a single
        # one, and sorted all 2,000 due jobs to list 50: 0.50 ms, and 0.03 ms in index order.
        with self._scans(connection, _BY_INDEX_ONLY.bindparams(sorts="on" if sorting else "off")):
            yield

    @contextmanager
    def _scans(self, connection: Connection, allowed: TextClause) -> Iterator[None]:
        """Inside, have the planner prefer some ways to read."""
        alone = self.in_autocommit(connection)
        with self.transaction_in_autocommit(connection) if alone else nullcontext():
            was = connection.execute(allowed).one()
            try:
                yield
            except DBAPIError:
                raise  # the transaction is broken, and the settings end with it
            except BaseException:
                connection.execute(_ANY_SCANS, was._asdict())
                raise
            connection.execute(_ANY_SCANS, was._asdict())

    to_know_owners: ClassVar[str] = ", since pg_locks is hidden; GRANT SELECT ON pg_locks"

    def server_of(self, connection: Connection) -> Server | None:
        return owner_liveness.server_of(connection, self.title)

    def own_process(self, connection: Connection) -> Process | None:
        return owner_liveness.own_process(connection)

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        states = owner_liveness.process_states(connection, processes)
        return super().process_states(connection, processes) if states is None else states

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        level = connection.exec_driver_sql("SELECT current_setting('transaction_isolation')")
        return level.scalar_one() in {"read committed", "read uncommitted"}

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        return TableNumber(table)

    def claim_lock(self, table: Table) -> Executable:
        return claim_lock(table, LOCK_WAIT)

    def lock_wait(self, connection: Connection) -> timedelta:
        milliseconds = connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one()
        return timedelta(milliseconds=milliseconds) if milliseconds else LOCK_WAIT

    may_wait_without_limit: ClassVar[bool] = True

    def limit_lock_wait(
        self, connection: Connection, limit: timedelta, *, of_session: bool
    ) -> bool:
        milliseconds = str(limit // timedelta(milliseconds=1))
        wanted = {"limit": milliseconds, "of_transaction": not of_session}
        return connection.execute(_LIMIT_LOCK_WAIT, wanted).first() is not None

    def lift_lock_wait_limit(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION lock_timeout = 0")

    @contextmanager
    def time_limit(self, connection: Connection, limit: timedelta) -> Iterator[None]:
        # Of the transaction alone: behind a pooler a setting of the session would be another's.
        milliseconds = limit // timedelta(milliseconds=1)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, milliseconds)}")
        yield

    def pause(self, connection: Connection, time: timedelta) -> None:
        connection.exec_driver_sql(f"SELECT pg_sleep({time.total_seconds():.6f})")

    @classmethod
    def is_missing_table(cls, error: BaseException) -> bool:
        return sqlstate(error) == UNDEFINED_TABLE

    @classmethod
    def is_time_limit(cls, error: BaseException) -> bool:
        return sqlstate(error) == QUERY_CANCELED

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return sqlstate(error) == LOCK_NOT_AVAILABLE

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        return sqlstate(error) in {SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE}

    @classmethod
    def is_shortage(cls, error: BaseException) -> bool:
        # Out of disk, memory or connections; an error of the file system; read-only.
        state = sqlstate(error) or ""
        return state[:2] in {"53", "58"} or cls.is_read_only(error)

    @classmethod
    def is_read_only(cls, error: BaseException) -> bool:
        return sqlstate(error) == READ_ONLY

    @classmethod
    def is_failed_transaction(cls, error: BaseException) -> bool:
        return sqlstate(error) == IN_FAILED_TRANSACTION

    @classmethod
    def is_refused_login(cls, error: BaseException) -> bool:
        return login_is_refused(error)

    # -- parts ----------------------------------------------------------

    def named_locks(self) -> PostgreSQLNamedLocks:
        return PostgreSQLNamedLocks(self)

    def serial_key_locks(self) -> PostgreSQLSerialKeyLocks:
        return PostgreSQLSerialKeyLocks(self)

    def examination(self) -> PostgreSQLExamination:
        return PostgreSQLExamination(self)

    def schema_changes(self) -> PostgreSQLSchemaChanges:
        return PostgreSQLSchemaChanges(self)


@compiles(utc_now, "postgresql")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # now() is the time at which the transaction began: the lease of a claim in an old
    # transaction would be over at once. clock_timestamp() differs from row to row.
    if not element.clauses.clauses:
        return "statement_timestamp()"
    shift = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() + {shift} * interval '1 microsecond')"


@compiles(naive_utc_now, "postgresql")
def _naive_utc_now(element: naive_utc_now, compiler: Any, **kw: Any) -> str:
    # PostgreSQL would read the column's times in the zone of the session.
    return f"({_utc_now(element, compiler, **kw)} AT TIME ZONE 'UTC')"
