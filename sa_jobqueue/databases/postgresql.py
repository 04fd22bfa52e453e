"""PostgreSQL: one UPDATE claims, since its locking sub-select is sure to run only once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator, TypeEngine

from .connections import as_value, driver_errors, fetch_all, qualified
from .database import (
    LOCK_WAIT,
    Database,
    TableExpression,
    sorted_by_name,
    unless_null,
)
from .named_locks import Key, OwnerState, Process, Server, digest

log = logging.getLogger("sa_jobqueue.enqueue")
migration_log = logging.getLogger("sa_jobqueue.migration")

LOCK_NOT_AVAILABLE = "55P03"
IN_FAILED_TRANSACTION = "25P02"

#: A text is no number.
_INVALID_TEXT = "22P02"

#: What libpq tells of a refused login, without a SQLSTATE.
_REFUSED = re.compile(r"authentication failed|does not exist|no pg_hba.conf|no password supplied")

#: A host that loses its power or network does not close its connections, and by default the
#: server probes a silent one after two hours. With these settings it probes after 30 seconds,
#: and closes the connection when nothing answers for another 60.
SILENCE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
    "tcp_user_timeout": "90000",
}


_END_SESSION = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = :process AND usename = current_user AND datname = current_database()
    AND state_change < clock_timestamp() - make_interval(secs => :quiet)
""")

_LIMIT_LOCK_WAIT = text("""
SELECT set_config('lock_timeout', :limit, :of_transaction)
WHERE current_setting('lock_timeout') = '0'
""")

_CLAIM_DATE: ColumnElement[Any] = literal_column(
    "(SELECT clock_timestamp())", DateTime(timezone=True)
)

#: The setting that holds a text from one statement to a later one of its transaction.
_LEFT: ColumnElement[str] = literal_column("'sa_jobqueue.left'", String)

#: What the server's log says of a statement that has undone itself, before a number.
_UNDONE = "sa_jobqueue undoes this statement: claims were lost or renewed. Jobs it had finished:"


# Only the settings that this server's version has.
_SET = text(
    "SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN :silence ELSE '0' END,"
    " false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'statement_timeout',"
    " 'transaction_timeout')"
)
_TRY = text("SELECT pg_try_advisory_lock(CAST(:key AS bigint))")
_WAIT = text("SELECT pg_advisory_lock(CAST(:key AS bigint))")
_KEY = "(CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)"

# objsubid 1: one number of 64 bits; 2 would be two numbers of 32.
_GRANTED = """l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_LOCKS = f"FROM pg_locks AS l WHERE {_GRANTED} AND {_KEY}"

_HELD = text(f"SELECT {_KEY} {_LOCKS} IN :keys").bindparams(
    bindparam("keys", expanding=True, type_=BigInteger)
)


class PostgreSQL(Database):
    """PostgreSQL 14 and later, by any driver."""

    title = "PostgreSQL"
    minimum = (14,)
    product_question = "SELECT version()"

    skip_locked = True
    no_key_update = True
    lock_of = True
    lock_once = True
    update_returning = True
    locks_duplicates = False
    forgets_implied = True
    strays_to_key = True
    advisory_locks = True
    notifies = True
    repeats_keys = True
    leaves_texts = True
    locks_keys = True
    may_wait_without_limit = True
    partial_indexes_of = "postgresql"
    to_know_owners = ", since pg_locks is hidden; GRANT SELECT ON pg_locks"

    # SQLSTATEs, or their first two characters.
    error_codes: ClassVar[Mapping[str, Collection[Any]]] = {
        "failed_transaction": [IN_FAILED_TRANSACTION],
        "lock_timeout": [LOCK_NOT_AVAILABLE],  # lock_timeout was over
        "missing_table": ["42P01"],
        "read_only": ["25006"],  # a standby, or a primary that was demoted
        "refused_login": ["28", "3D"],  # this user, this database
        # Out of disk, memory or connections; an error of the file system.
        "shortage": ["25006", "53", "58"],
        "time_limit": ["57014"],  # statement_timeout was over, or somebody cancelled the statement
        "transient": ["40001", "40P01", LOCK_NOT_AVAILABLE],  # serialization failure, deadlock
    }

    @classmethod
    def meanings(cls, error: BaseException) -> set[str]:
        state = sqlstate(error)
        if state is None:
            names = {base.__name__ for base in type(error).__mro__}
            refused = "DatabaseError" in names and _REFUSED.search(str(error))
            return {"refused_login"} if refused else set()
        if state == _INVALID_TEXT and _UNDONE in str(error):
            return {"undone"}
        return cls.meanings_of(state, state[:2])

    # -- transactions ---------------------------------------------------

    def refuses_commit(self, connection: Connection) -> bool:
        # By the Connection, which raises if it is lost.
        return _is_refused(
            connection.connection.dbapi_connection,
            lambda: connection.exec_driver_sql("SELECT 1"),
            DBAPIError,
        )

    def driver_refuses_commit(self, driver: Any, errors: type[Exception]) -> bool:
        return _is_refused(driver, lambda: fetch_all(driver, "SELECT 1"), errors)

    def sees_commits(self, connection: Connection, *, begun: bool = False) -> bool:
        level = connection.exec_driver_sql("SELECT current_setting('transaction_isolation')")
        return level.scalar_one() in {"read committed", "read uncommitted"}

    # -- connections ----------------------------------------------------

    def told_backend(self, driver: Any) -> int | None:
        ask = getattr(driver, "get_server_pid", None)  # asyncpg
        told = ask() if ask else getattr(getattr(driver, "info", None), "backend_pid", None)
        if isinstance(told, int):  # behind a pooler it may be negative, or 0 for none
            return told
        key = getattr(driver, "_backend_key_data", None)  # pg8000
        return int.from_bytes(key[:4], "big", signed=True) if isinstance(key, bytes) else None

    # All clients of PGlite share one session. It gives them its process number, but a lock of the
    # session outlives the client that took it, and does not keep the others out.
    backend_question = "SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END"

    def end_session(self, connection: Connection, process: int, quiet: timedelta) -> None:
        connection.execute(_END_SESSION, {"process": process, "quiet": quiet.total_seconds()})

    def notice_silence(self, connection: Connection) -> None:
        set_settings(connection, SILENCE, of_session=True)

    # -- owners ---------------------------------------------------------

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

    # -- named locks: advisory locks of a session -------------------------

    lock_wait_at_once = 2.0
    lock_giving = text("SELECT pg_advisory_unlock(CAST(:key AS bigint))")
    lock_holding = text(
        f"SELECT EXISTS (SELECT 1 {_LOCKS} = CAST(:key AS bigint) AND l.pid = pg_backend_pid())"
    )
    lock_holder_asking = text(f"""
        SELECT h.pid, a.usename, host(a.client_addr), a.application_name
        FROM (SELECT l.pid {_LOCKS} = CAST(:key AS bigint)) AS h
        LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
    """)

    def prepare_lock(self, connection: Connection) -> None:
        self.notice_silence(connection)
        milliseconds = self.lock_limits.silence // timedelta(milliseconds=1)
        connection.execute(_SET, {"silence": str(milliseconds)})

    def lock_keys(self, connection: Connection, names: Iterable[str]) -> dict[str, Key]:
        return {name: int.from_bytes(digest(name)[:8], "big", signed=True) for name in names}

    def take_lock(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        milliseconds = int(seconds * 1000)
        if not milliseconds:  # to the server, 0 means no limit
            return bool(connection.scalar(_TRY, {"key": key}))
        set_settings(connection, {"lock_timeout": str(milliseconds)}, of_session=True)
        try:
            connection.execute(_WAIT, {"key": key})
        except Exception as error:  # a handle_error listener may raise what it likes
            if any(sqlstate(cause) == LOCK_NOT_AVAILABLE for cause in driver_errors(error)):
                return False
            raise
        return True

    def held_among(self, connection: Connection, names: Iterable[str]) -> set[str]:
        keys = self.lock_keys(connection, names)
        held = set(connection.execute(_HELD, {"keys": [*keys.values()]}).scalars())
        return {name for name, key in keys.items() if key in held}

    # -- serial keys: advisory locks of a transaction ---------------------

    # The end of the transaction frees the lock, and so does ROLLBACK TO a savepoint from before.
    # The lock's number has 64 bits: it equals that of a named lock only by a chance of 1 in 2^64,
    # and never that of a row, which has two numbers of 32 bits.

    def serial_key(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        # A record is hashed by the types of its columns: so equal values have the same hash.
        ordered = sorted_by_name(columns)
        record = func.row(*ordered)
        seed = cast(TableNumber(table), BigInteger) + literal_column(str(_columns_number(ordered)))
        return unless_null(columns, func.hash_record_extended(record, seed, type_=BigInteger))

    def lock_serial_keys(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        return set(connection.execute(_TAKE, {"sa_jobqueue_tokens": list(tokens)}).scalars())

    def serial_key_statement(self) -> Executable:
        return _TAKE

    # -- row locks ------------------------------------------------------

    def table_identity(self, table: Table) -> ColumnElement[Any]:
        return TableNumber(table)

    def claim_lock(self, table: Table) -> Executable:
        # It waits as long as lock_timeout says, else as long as InnoDB. PostgreSQL computes the
        # columns from left to right, and OFFSET keeps the sub-select apart: so it sets the
        # timeout, waits for the lock, and restores the caller's own lock_timeout.
        lock = func.pg_advisory_xact_lock(literal_column(str(SPACE)), TableNumber(table))
        return select(
            literal_column("keeps_snapshot"),
            literal_column(
                "set_config('lock_timeout', CASE own WHEN '0' THEN "
                f"'{LOCK_WAIT // timedelta(milliseconds=1)}' ELSE own END, true)"
            ),
            case((literal_column("NOT keeps_snapshot"), lock)),
            literal_column("set_config('lock_timeout', own, true)"),
        ).select_from(_LOCK_SETTINGS)

    pausing = "SELECT pg_sleep({:.6f})"
    lock_timeout_question = (
        "SELECT NULLIF(CAST(setting AS integer), 0) FROM pg_settings WHERE name = 'lock_timeout'"
    )

    def limit_lock_wait(
        self, connection: Connection, limit: timedelta, *, of_session: bool
    ) -> bool:
        milliseconds = str(limit // timedelta(milliseconds=1))
        wanted = {"limit": milliseconds, "of_transaction": not of_session}
        return connection.execute(_LIMIT_LOCK_WAIT, wanted).first() is not None

    def lift_lock_wait_limit(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION lock_timeout = 0")

    def limit_waits_of_looks(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION lock_timeout = '1s'")

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        milliseconds = max(1, time // timedelta(milliseconds=1))  # 0 would mean no limit
        if not self.in_autocommit(connection):
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
            yield
        elif self.through_pooler(connection):
            # A setting of the session would stay on a server connection that others use next.
            # Nobody queues behind a concurrent build, so it may wait without a limit.
            migration_log.warning(
                "connected through a pooler: this waits for locks without a time limit"
            )
            yield
        else:
            # An environment's statement_timeout would end a build that works for longer.
            limits = {"lock_timeout": str(milliseconds), "statement_timeout": "0"}
            with self.with_settings(connection, limits, of_session=True):
                yield

    @contextmanager
    def time_limit(self, connection: Connection, limit: timedelta) -> Iterator[None]:
        # Of the transaction alone: behind a pooler a setting of the session would be another's.
        milliseconds = limit // timedelta(milliseconds=1)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, milliseconds)}")
        yield

    # -- settings of the server -------------------------------------------

    @contextmanager
    def with_settings(
        self, connection: Connection, values: Mapping[str, str], *, of_session: bool = False
    ) -> Iterator[None]:
        """Inside, settings of the transaction have these values, or settings of the session."""
        alone = not of_session and self.in_autocommit(connection)
        with self.transaction_in_autocommit(connection) if alone else nullcontext():
            own = set_settings(connection, values, of_session=of_session)
            try:
                yield
            except BaseException as error:
                # An error of the database breaks the transaction, and its settings end with it.
                if of_session or not isinstance(error, DBAPIError):
                    set_settings(connection, own, of_session=of_session)
                raise
            set_settings(connection, own, of_session=of_session)

    # -- statistics, and the planner --------------------------------------

    def told_of_rows(self, connection: Connection, table: Table, rows: int) -> None:
        # Of a table that was never analyzed, or when it was empty, the planner guesses how many
        # jobs are due. Where it guesses no more of them than a claim may take, it reads and sorts
        # all jobs, instead of walking the claim index to its limit. Autovacuum would analyze the
        # table within minutes. This reads 30,000 rows at most, in the caller's transaction, whose
        # other statements keep their time limit.
        asked = {"table": qualified(connection, table)}
        known = connection.scalar(_KNOWN, asked)
        if rows <= SHARE * known:
            return
        with self.with_settings(connection, {"statement_timeout": "0"}):
            # Somebody else who analyzes the table, such as autovacuum, holds its lock.
            named = asked["table"].replace(":", "\\:")  # a text() knows :name
            connection.execute(text(f"ANALYZE (SKIP_LOCKED) {named}"))
        if connection.scalar(_KNOWN, asked) == known:
            log.info(
                "%d rows are new in %s, and its statistics are older: claims may be slow until "
                "autovacuum or the table's owner has analyzed it",
                rows,
                table.fullname,
            )

    def by_index(self, connection: Connection) -> AbstractContextManager[None]:
        # The planner expects a third of all rows below a value that it does not know. To find
        # position 10 of 100,000 it read the whole table (16 ms instead of 1.6), or walked over
        # 40,000 done rows by the primary key, because the rows are stored in its order. With
        # bitmap scans the stored order counts for nothing, and the narrowest range is cheapest.
        off = {"enable_seqscan": "off", "enable_indexscan": "off"}
        return self.with_settings(connection, off)

    def without_table_scans(
        self, connection: Connection, *, sorting: bool = False
    ) -> AbstractContextManager[None]:
        # To count 10,001 of 50,000 jobs the planner read the table from its beginning, where
        # 150,000 rows were done. Bitmaps are off too: they hold the whole range before the first
        # row of it is counted. Where few rows of many are unclaimed the planner expects a single
        # one, and sorted all 2,000 due jobs to list 50: 0.50 ms, and 0.03 ms in index order.
        off = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
        return self.with_settings(connection, off if sorting else {**off, "enable_sort": "off"})

    # -- statements -----------------------------------------------------

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


def _is_refused(driver: Any, ask: Callable[[], object], errors: type[Exception]) -> bool:
    """Tell whether the transaction of a driver's connection has failed; if it does not know, ask.

    A failed transaction refuses a question. Another error is that of a lost connection. asyncpg
    forgets its transaction then, and SQLAlchemy would take the COMMIT for done.
    """
    status: int | None = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:
        return status == _IN_ERROR
    try:
        ask()
    except errors as error:
        if sqlstate(getattr(error, "orig", error)) != IN_FAILED_TRANSACTION:
            raise
        return True
    return False


# -- settings of the server ---------------------------------------------


def set_settings(
    connection: Connection, values: Mapping[str, str], *, of_session: bool
) -> dict[str, str]:
    """Set settings of the transaction or of the session by one statement; return what they were."""
    asked = ", ".join(f"current_setting('{name}')" for name in values)
    local = str(not of_session).lower()
    given = ", ".join(f"set_config('{name}', :{name}, {local})" for name in values)
    found: Any = connection.execute(text(f"SELECT {asked}, {given}"), dict(values)).one()
    return dict(zip(values, found[: len(values)], strict=True))


# -- strict order ------------------------------------------------------

#: The first number of the lock; the second is the table's oid. Locks of rows have a table's
#: oid as their first number, and no user's table has an oid below 16,384.
SPACE = 7303

_LOCK_SETTINGS = text("""(
  SELECT current_setting('lock_timeout') AS own,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
    AS keeps_snapshot
  OFFSET 0) AS sa_jobqueue_settings""")


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

#: How many rows the planner knows of.
_KNOWN = text("SELECT reltuples FROM pg_class WHERE oid = CAST(:table AS regclass)")
