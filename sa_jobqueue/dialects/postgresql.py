"""PostgreSQL: one UPDATE claims, since its locking sub-select is sure to run only once."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar
from zlib import crc32

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Executable,
    Insert,
    Integer,
    Select,
    String,
    Table,
    TextClause,
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    not_,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import OID, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..errors import UnsupportedDatabase
from .after_commit import fetch_all
from .capabilities import LOCK_WAIT, Meaning, OwnerState, Process, Server, Version
from .clock import naive_utc_now, utc_now
from .connections import as_value, driver_errors, qualified
from .database import Database, SerialKeyLocks, plain_type, sorted_by_name, unless_null
from .expressions import TableExpression
from .named_locks import ConnectionLocks, Holder, Key, digest
from .watched_connection import Limits

log = logging.getLogger("sa_jobqueue.enqueue")

LOCK_NOT_AVAILABLE = "55P03"
IN_FAILED_TRANSACTION = "25P02"

#: What a SQLSTATE means, or its first two characters.
_MEANINGS: dict[str, tuple[Meaning, ...]] = {
    "25006": ("read_only", "shortage"),  # a standby, or a primary that was demoted
    IN_FAILED_TRANSACTION: ("failed_transaction",),
    "28": ("refused_login",),  # this user
    "3D": ("refused_login",),  # this database
    "40001": ("transient",),  # serialization failure
    "40P01": ("transient",),  # deadlock
    "42P01": ("missing_table",),
    "53": ("shortage",),  # out of disk, memory or connections
    LOCK_NOT_AVAILABLE: ("lock_timeout", "transient"),  # lock_timeout was over
    "57014": ("time_limit",),  # statement_timeout was over, or somebody cancelled the statement
    "58": ("shortage",),  # an error of the file system
}

#: A text is no number.
_INVALID_TEXT = "22P02"

#: What libpq tells of a refused login, without a SQLSTATE.
_REFUSED = re.compile(r"authentication failed|does not exist|no pg_hba.conf|no password supplied")

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

_END_SESSION = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = :process AND usename = current_user AND datname = current_database()
    AND state_change < clock_timestamp() - make_interval(secs => :quiet)
""")

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
    examined_by = "examination.postgresql:PostgreSQLExamination"
    changed_by = "schema_changes.postgresql:PostgreSQLSchemaChanges"
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
        told = _told_failure(connection.connection.dbapi_connection)
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
        told = _told_failure(driver)
        if told is not None:
            return told
        try:  # other drivers, such as asyncpg, do not tell; a failed transaction refuses this
            fetch_all(driver, "SELECT 1")
        except errors as error:
            # Another error is that of a lost connection. asyncpg forgets its transaction then, and
            # SQLAlchemy would take the COMMIT for done.
            if sqlstate(error) != IN_FAILED_TRANSACTION:
                raise
            return True
        return False

    def told_backend(self, driver: Any) -> int | None:
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

    def end_session(self, connection: Connection, process: int, quiet: timedelta) -> None:
        connection.execute(_END_SESSION, {"process": process, "quiet": quiet.total_seconds()})

    def notice_silence(self, connection: Connection) -> None:
        settings = ", ".join(
            f"set_config('{name}', '{value}', false)" for name, value in SILENCE.items()
        )
        connection.exec_driver_sql(f"SELECT {settings}")

    def told_of_rows(self, connection: Connection, table: Table, rows: int) -> None:
        # Of a table that was never analyzed, or when it was empty, the planner guesses how many
        # jobs are due. Where it guesses no more of them than a claim may take, it reads and sorts
        # all jobs, instead of walking the claim index to its limit. Autovacuum would analyze the
        # table within minutes. This reads 30,000 rows at most, in the caller's transaction, whose
        # other statements keep their time limit.
        known, timeout = _known(connection, table, func.current_setting(_TIMEOUT))
        if rows <= SHARE * known:
            return
        connection.execute(select(func.set_config(_TIMEOUT, "0", true())))
        connection.execute(_Analyze(table))
        again, _ = _known(connection, table, func.set_config(_TIMEOUT, timeout, true()))
        if again == known:
            log.info(
                "%d rows are new in %s, and its statistics are older: claims may be slow until "
                "autovacuum or the table's owner has analyzed it",
                rows,
                table.fullname,
            )

    def unanalyzed_rows(self, connection: Connection, table: Table) -> int:
        # The server counts them with a delay of up to a second.
        found = connection.execute(_CHANGED, {"table": qualified(connection, table)}).one()
        return int(found.changed) if found.changed > max(FEW, found.known) else 0

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
        answer = connection.exec_driver_sql(_DATABASE).one()
        if not answer.sees_locks:
            return None
        if answer.may_ask:
            server = tuple(connection.exec_driver_sql(_CONTROL).one())
        else:  # the same until the server is restarted
            server = (answer.server_started,)
        alone = not answer.is_standby
        return Server.identified_by(self.title, *server, answer.database, alone=alone)

    def own_process(self, connection: Connection) -> Process | None:
        own = connection.execute(_PROCESSES, {"pids": []}).one()
        # Hidden after SET ROLE. Or the clock was set back since the server started: then
        # process_states() would take the connection for one from before that start.
        if own.started is None or own.started < own.server_started:
            return None
        return Process(own.pid, own.started)

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        connection.exec_driver_sql(_FORGET_COPY)
        asked = {"pids": [process.id for process in processes]}
        listed = connection.execute(_PROCESSES, asked).all()
        if not listed:  # the list hides even this connection
            return super().process_states(connection, processes)
        started, since = {row.pid: row.started for row in listed}, listed[0].server_started
        return {process: _state(process, started, since) for process in processes}

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        level = connection.exec_driver_sql("SELECT current_setting('transaction_isolation')")
        return level.scalar_one() in {"read committed", "read uncommitted"}

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        return TableNumber(table)

    def claim_lock(self, table: Table) -> Executable:
        # It waits as long as lock_timeout says, else as long as InnoDB. PostgreSQL computes the
        # columns from left to right, and OFFSET keeps the sub-select apart: so it sets the
        # timeout, waits for the lock, and restores the caller's own lock_timeout.
        name: ColumnElement[str] = literal_column("'lock_timeout'")
        forever: ColumnElement[str] = literal_column("'0'")
        isolation = func.current_setting(literal_column("'transaction_isolation'"))
        settings = (
            select(
                func.current_setting(name).label("lock_timeout"),
                isolation.in_(_KEEPING_SNAPSHOT).label("keeps_snapshot"),
            )
            .offset(literal_column("0"))
            .subquery("sa_jobqueue_settings")
        )
        own, keeps_snapshot = settings.c.lock_timeout, settings.c.keeps_snapshot
        ours: ColumnElement[str] = literal_column(f"'{LOCK_WAIT // timedelta(milliseconds=1)}'")
        lock = func.pg_advisory_xact_lock(literal_column(str(SPACE)), TableNumber(table))
        return select(
            keeps_snapshot,
            func.set_config(name, case((own == forever, ours), else_=own), true()),
            case((not_(keeps_snapshot), lock)),
            func.set_config(name, own, true()),
        )

    def lock_timeout(self, connection: Connection) -> timedelta | None:
        milliseconds = connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one()
        return timedelta(milliseconds=milliseconds) or None

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
    def meanings(cls, error: BaseException) -> tuple[Meaning, ...]:
        state = sqlstate(error)
        if state is None:
            names = {base.__name__ for base in type(error).__mro__}
            refused = "DatabaseError" in names and _REFUSED.search(str(error))
            return ("refused_login",) if refused else ()
        if state == _INVALID_TEXT and _UNDONE in str(error):
            return ("undone",)
        return _MEANINGS.get(state) or _MEANINGS.get(state[:2], ())

    # -- parts ----------------------------------------------------------

    def named_locks(self) -> PostgreSQLNamedLocks:
        return PostgreSQLNamedLocks(self)

    def serial_key_locks(self) -> PostgreSQLSerialKeyLocks:
        return PostgreSQLSerialKeyLocks(self)


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


def sqlstate(error: BaseException | None) -> str | None:
    """Return the five characters of a driver's error; None: it has none."""
    # psycopg 3 and asyncpg; psycopg 2; pg8000.
    for name in ("sqlstate", "pgcode"):
        state: str | None = getattr(error, name, None)
        if state:
            return state
    fields = error.args[0] if error and error.args else None
    return fields.get("C") if isinstance(fields, dict) else None


#: How psycopg 2 and 3 number the state of a transaction in which a statement has failed.
_IN_ERROR = 3


def _told_failure(driver: Any) -> bool | None:
    """Tell whether a statement of the transaction has failed; None: the driver does not tell."""
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else bool(status == _IN_ERROR)


# -- strict order ------------------------------------------------------

#: The first number of the lock; the second is the table's oid. Locks of rows have a table's
#: oid as their first number, and no user's table has an oid below 16,384.
SPACE = 7303

_KEEPING_SNAPSHOT: list[ColumnElement[str]] = [
    literal_column("'repeatable read'"),
    literal_column("'serializable'"),
]


class TableNumber(TableExpression[int]):
    """A table's oid, as the 32-bit number that an advisory lock takes."""

    __visit_name__ = "sa_jobqueue_table_number"
    inherit_cache = True
    type = Integer()


@compiles(TableNumber, "postgresql")
def _table_number(element: TableNumber, compiler: Any, **kw: Any) -> str:
    # The server finds the table, since its name can be spelled in many ways.
    quoted = compiler.preparer.format_table(element.table)
    name = as_value(compiler.dialect, quoted)  # rendering doubles each % of a literal again
    text = compiler.render_literal_value(name, String())
    return f"CAST(CAST(CAST({text} AS regclass) AS oid) AS integer)"


# -- serial keys -------------------------------------------------------


class IntegerArray(TypeDecorator[Sequence[int]]):
    """An array parameter of integers, which psycopg2 would otherwise quote one by one."""

    impl = ARRAY(BigInteger)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type that the driver gets: for psycopg2, text."""
        return String() if dialect.driver == "psycopg2" else self.impl_instance

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> Any:
        """Write an array's text for psycopg2: 100 keys take 10 microseconds, as a list 90."""
        if value is None or dialect.driver != "psycopg2":
            return value
        return f"{{{','.join(map(str, map(int, value)))}}}"


class PostgreSQLSerialKeyLocks(SerialKeyLocks):
    """Advisory locks of the transaction: ``pg_try_advisory_xact_lock``.

    The end of the transaction frees the lock, and so does ROLLBACK TO a savepoint from before.
    The lock's number has 64 bits: it equals that of a named lock only by a chance of 1 in 2^64,
    and never that of a row, which has two numbers of 32 bits.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # A record is hashed by the types of its columns: so equal values have the same hash.
        ordered = sorted_by_name(columns)
        record = func.row(*ordered)
        seed = cast(TableNumber(table), BigInteger) + literal_column(str(_columns_number(ordered)))
        if self._database.hashes_records:
            return unless_null(columns, func.hash_record_extended(record, seed, type_=BigInteger))
        self._check_text(table, columns)
        text = cast(record, String)
        return unless_null(columns, func.hashtextextended(text, seed, type_=BigInteger))

    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(connection.execute(_TAKE, {"sa_jobqueue_tokens": list(tokens)}).scalars())

    def statement(self) -> Executable:
        return _TAKE

    def _check_text(self, table: Table, columns: Sequence[Any]) -> None:
        """Refuse types whose text depends on a session's settings."""
        types = [plain_type(column.type) for column in columns]
        if not all(isinstance(kind, Integer | String | Uuid) for kind in types):
            raise UnsupportedDatabase(
                f"keys of {table.description} cannot be locked on {self._database}: before "
                "PostgreSQL 14 only keys of integers, strings and UUIDs can; upgrade the server"
            )


def _columns_number(columns: Sequence[Any]) -> int:
    """Return a number for these columns, to which the oid of the table is added."""
    names = "\0".join(str(column.expression.name) for column in columns)
    return crc32(names.encode()) << 31


def _take() -> Select[Any]:
    """Return the SELECT that locks the given numbers only: there is nothing to sort or filter."""
    given = cast(bindparam("sa_jobqueue_tokens", type_=IntegerArray()), ARRAY(BigInteger))
    tokens = func.unnest(given).table_valued("token", name="key").render_derived()
    return select(tokens.c.token).where(func.pg_try_advisory_xact_lock(tokens.c.token))


_TAKE = _take()


# -- named locks -------------------------------------------------------

# Only the settings that this server's version has.
_SET = text(
    "SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN :silence ELSE '0' END,"
    " false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'statement_timeout',"
    " 'transaction_timeout')"
)
_SET_WAIT = text("SELECT set_config('lock_timeout', :milliseconds, false)")

_TRY = text("SELECT pg_try_advisory_lock(CAST(:key AS bigint))")
_WAIT = text("SELECT pg_advisory_lock(CAST(:key AS bigint))")
_GIVE = text("SELECT pg_advisory_unlock(CAST(:key AS bigint))")

# objsubid 1: one number of 64 bits; 2 would be two numbers of 32.
_LOCKS = (
    "FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = CAST(:key AS bigint)"
)
_HOLDER = text(f"SELECT l.pid, a.usename, host(a.client_addr), a.application_name {_LOCKS}")
_HOLDS = text(f"SELECT EXISTS (SELECT 1 {_LOCKS} AND l.pid = pg_backend_pid())")

# The same for many keys.
_HELD = text("""
SELECT (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) AS key
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) IN :keys
""").bindparams(bindparam("keys", expanding=True, type_=BigInteger))


class PostgreSQLNamedLocks(ConnectionLocks):
    """Locks of one database: advisory locks of a session, by a 64-bit hash of the name."""

    # TCP keepalives tell the server within two minutes that a host is gone. So the silence is as
    # long as MySQL's: a process that keeps the GIL for minutes is alive. It ends the lock of a
    # process that was stopped, and of one that is gone behind a proxy, which answers for it.
    limits: ClassVar[Limits] = Limits(silence=timedelta(seconds=585))
    wait: ClassVar[float] = 2.0

    def prepare(self, connection: Connection) -> None:
        self.database.notice_silence(connection)
        milliseconds = self.limits.silence // timedelta(milliseconds=1)
        connection.execute(_SET, {"silence": str(milliseconds)})

    def key(self, connection: Connection, name: str) -> int:
        return int.from_bytes(digest(name)[:8], "big", signed=True)

    def take(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        milliseconds = int(seconds * 1000)
        if not milliseconds:  # to the server, 0 means no limit
            return bool(connection.scalar(_TRY, {"key": key}))
        connection.execute(_SET_WAIT, {"milliseconds": str(milliseconds)})
        try:
            connection.execute(_WAIT, {"key": key})
        except Exception as error:  # a handle_error listener may raise what it likes
            if any(sqlstate(cause) == LOCK_NOT_AVAILABLE for cause in driver_errors(error)):
                return False
            raise
        return True

    def give(self, connection: Connection, *, key: Key) -> bool:
        return bool(connection.scalar(_GIVE, {"key": key}))

    def holds(self, connection: Connection, *, key: Key) -> bool:
        return bool(connection.scalar(_HOLDS, {"key": key}))

    def find_holder(self, connection: Connection, key: Key) -> Holder | None:
        row = connection.execute(_HOLDER, {"key": key}).first()
        if row is None:
            return None
        return Holder(process=row[0], user=row[1], host=row[2], program=row[3])

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        keys = {self.key(connection, name): name for name in names}
        return {keys[key] for key in connection.execute(_HELD, {"keys": list(keys)}).scalars()}


# -- owners ------------------------------------------------------------


def _microseconds(time: str) -> str:
    return f"CAST(round(extract(epoch FROM {time}) * 1000000) AS bigint)"


_DATABASE = f"""
SELECT (SELECT oid FROM pg_database WHERE datname = current_database()) AS database,
  pg_is_in_recovery() AS is_standby,
  has_table_privilege('pg_catalog.pg_locks', 'SELECT') AS sees_locks,
  {_microseconds("pg_postmaster_start_time()")} AS server_started,
  (SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(name), 'EXECUTE'), false))
    FROM unnest(ARRAY['pg_control_system()', 'pg_control_checkpoint()', 'pg_control_recovery()'])
    AS name) AS may_ask
"""

# A promoted standby has its primary's identifier, but a timeline of its own. Before its
# first checkpoint, only min_recovery_end_timeline shows the new timeline.
_CONTROL = """
SELECT system_identifier, greatest(timeline_id, min_recovery_end_timeline)
FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()
"""

# pg_stat_activity is copied once for a transaction: connections that were made after the
# copy would look dead.
_FORGET_COPY = "SELECT pg_stat_clear_snapshot()"

_PROCESSES = text(f"""
SELECT pid, {_microseconds("backend_start")} AS started,
  {_microseconds("pg_postmaster_start_time()")} AS server_started
FROM pg_stat_activity WHERE pid = pg_backend_pid() OR pid IN :pids
""").bindparams(bindparam("pids", expanding=True, type_=BigInteger))


def _state(process: Process, started: dict[int, int | None], server_started: int) -> OwnerState:
    if process.started < server_started or process.id not in started:
        return OwnerState.DEAD
    seen = started[process.id]
    if seen is None:  # another user's connection, of which we see only the number
        return OwnerState.UNKNOWN
    return OwnerState.ALIVE if seen == process.started else OwnerState.DEAD


# -- statistics --------------------------------------------------------

#: New rows are told of if they are more than this share of those that the planner knows of.
SHARE = 0.1

#: Up to here it does not matter what the planner knows: a claim that sorts so many is quick.
FEW = 5_000

# Of a partitioned table the partitions count, which autovacuum analyzes.
_CHANGED = text("""
SELECT coalesce(sum(s.n_mod_since_analyze), 0) AS changed,
  coalesce(sum(greatest(c.reltuples, 0)), 0) AS known
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.relid IN (SELECT to_regclass(:table) AS relid
  UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)))
""")

_TIMEOUT: Any = literal_column("'statement_timeout'")


class _Analyze(ExecutableDDLElement):
    inherit_cache = False

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(_Analyze, "postgresql")
def _analyze(element: _Analyze, compiler: Any, **kw: Any) -> str:
    # Somebody else who analyzes the table, such as autovacuum, holds its lock.
    return f"ANALYZE (SKIP_LOCKED) {compiler.preparer.format_table(element.table)}"


def _known(connection: Connection, table: Table, setting: Any) -> tuple[float, str]:
    """Return how many rows the planner knows of, and a setting."""
    rows: ColumnElement[float] = literal_column("reltuples")
    number: ColumnElement[int] = literal_column("oid")
    ours = number == cast(TableNumber(table), OID)
    asked = select(rows, setting).select_from(text("pg_catalog.pg_class")).where(ours)
    found: Any = connection.execute(asked).one()
    return found[0], found[1]
