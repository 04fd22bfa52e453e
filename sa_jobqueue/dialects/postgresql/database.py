"""PostgreSQL: one statement claims, since a locking sub-select can be fenced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Integer,
    Table,
    Uuid,
    any_,
    bindparam,
    cast,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from ..capabilities import LOCK_WAIT, Database, Version
from ..clock import utc_now
from ..drivers import driver_connection
from ..owner_liveness import OwnerState, Process, Server
from .arrays import IntegerArray
from .examination import PostgreSQLExamination
from .key_locks import PostgreSQLKeyLocks
from .named_locks import PostgreSQLLocks
from .schema_changes import PostgreSQLSchemaChanges
from .turns import claim_turn

#: Where the drivers keep the server process that they were told: psycopg 2 and 3, asyncpg.
_PID_TOLD = ("info.backend_pid", "get_server_pid")

#: A host that lost its power or its network says no farewell: by default the
#: server asks after two hours. Asked after 30 seconds, and not answered for
#: another 60, it is gone.
SILENCE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
    "tcp_user_timeout": "90000",
}


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

# A promoted standby has its primary's identifier, and a timeline of its own. Until
# its first checkpoint only the end of its recovery tells that one.
_CONTROL = """
SELECT system_identifier, greatest(timeline_id, min_recovery_end_timeline)
FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()
"""

# objsubid 1: the number has 64 bits, in two halves.
_HELD = text("""
SELECT (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) AS key
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) IN :keys
""").bindparams(bindparam("keys", expanding=True, type_=BigInteger))

# The list is a copy, kept for the whole transaction: connections made meanwhile
# would look dead.
_FORGET_COPY = "SELECT pg_stat_clear_snapshot()"

_PROCESSES = text(f"""
SELECT pid, {_microseconds("backend_start")} AS started,
  {_microseconds("pg_postmaster_start_time()")} AS server_started
FROM pg_stat_activity WHERE pid = pg_backend_pid() OR pid IN :pids
""").bindparams(bindparam("pids", expanding=True, type_=BigInteger))


_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_TIMEOUT = "SELECT CAST(setting AS integer) FROM pg_settings WHERE name = 'lock_timeout'"


_BITMAPS_ONLY = text("""
SELECT current_setting('enable_seqscan') AS seqscan,
  current_setting('enable_indexscan') AS indexscan,
  set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true)
""")
_ANY_SCANS = text("""
SELECT set_config('enable_seqscan', :seqscan, true),
  set_config('enable_indexscan', :indexscan, true)
""")


class PostgreSQL(Database):
    """PostgreSQL 13 and later, by any driver."""

    title = "PostgreSQL"
    minimum = (13,)

    kept_as_given = (int, UUID, str, bytes)
    skip_locked = True
    no_key_update = True
    lock_of = True
    lock_once = True
    update_returning = True
    delete_returning = True
    forgets_implied = True
    advisory_locks = True
    returns_new = True
    null_is_least = False

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.hashes_records = self.at_least(14)

    def told_backend(self, connection: Connection) -> int | None:
        driver = driver_connection(connection)
        for path in _PID_TOLD:
            found = driver
            for name in path.split("."):
                found = getattr(found, name, None)
            told = found() if callable(found) else found
            if isinstance(told, int):  # a pooler's own may be negative, or missing: 0
                return told
        key = getattr(driver, "_backend_key_data", None)  # pg8000
        return int.from_bytes(key[:4], "big", signed=True) if isinstance(key, bytes) else None

    def backend(self, connection: Connection) -> int | None:
        number: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        return number

    def named_locks(self) -> PostgreSQLLocks:
        return PostgreSQLLocks(self)

    def notice_silence(self, connection: Connection) -> None:
        settings = ", ".join(
            f"set_config('{name}', '{value}', false)" for name, value in SILENCE.items()
        )
        connection.exec_driver_sql(f"SELECT {settings}")

    def insert_new(self, target: Any) -> Insert:
        return insert(target).on_conflict_do_nothing()

    def key_is_in(self, key: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
        # An array is one parameter. Other types have operators of their own, which it
        # may not find; integers may have more bits in the table than in the model.
        kind: TypeEngine[Any] = BigInteger() if isinstance(key.type, Integer) else key.type
        if not isinstance(kind, BigInteger | Uuid) or not getattr(kind, "native_uuid", True):
            return super().key_is_in(key, parameter)
        array: TypeEngine[Any] = ARRAY(kind)
        given = IntegerArray() if isinstance(kind, BigInteger) else array
        return key == any_(cast(bindparam(parameter, type_=given), array))

    @contextmanager
    def by_index(self, connection: Connection) -> Iterator[None]:
        # Of the rows up to a value that it does not know the planner expects a third: to
        # find the place 10 of 100,000 it read the whole table, in 16 ms against 1.6, or
        # walked over 40,000 done rows by the primary key, which the rows are in the order of.
        # As bitmaps, that order counts for nothing, and the narrowest range is the cheapest.
        alone = self.in_autocommit(connection)
        with self.transaction_in_autocommit(connection) if alone else nullcontext():
            was = connection.execute(_BITMAPS_ONLY).one()
            try:
                yield
            except DBAPIError:
                raise  # the settings end with the transaction, which is broken
            except BaseException:
                connection.execute(_ANY_SCANS, was._asdict())
                raise
            connection.execute(_ANY_SCANS, was._asdict())

    to_know_owners: ClassVar[str] = ", since pg_locks is hidden; GRANT SELECT ON pg_locks"

    def server_of(self, connection: Connection) -> Server | None:
        told = connection.exec_driver_sql(_DATABASE).one()
        if not told.sees_locks:
            return None
        if told.may_ask:
            server = tuple(connection.exec_driver_sql(_CONTROL).one())
        else:  # good until the server is restarted
            server = (told.server_started,)
        return Server.identified_by(self.title, *server, told.database, alone=not told.is_standby)

    def held_locks(self, connection: Connection, names: Iterable[str]) -> set[str]:
        locks = self.named_locks()
        keys = {locks.key(connection, name): name for name in names}
        return {keys[key] for key in connection.execute(_HELD, {"keys": list(keys)}).scalars()}

    def own_process(self, connection: Connection) -> Process | None:
        own = connection.execute(_PROCESSES, {"pids": []}).one()
        # Hidden after SET ROLE. Or the clock was set back since the server started:
        # the connection would look like one from before that.
        if own.started is None or own.started < own.server_started:
            return None
        return Process(own.pid, own.started)

    def process_states(
        self, connection: Connection, processes: Collection[Process]
    ) -> dict[Process, OwnerState]:
        connection.exec_driver_sql(_FORGET_COPY)
        asked = {"pids": [process.id for process in processes]}
        listed = connection.execute(_PROCESSES, asked).all()
        if not listed:  # not even this connection
            return super().process_states(connection, processes)
        started = {row.pid: row.started for row in listed}
        return {
            process: _state(process, started, listed[0].server_started) for process in processes
        }

    def sees_commits(self, connection: Connection) -> bool:
        level = connection.exec_driver_sql("SELECT current_setting('transaction_isolation')")
        return level.scalar_one() in {"read committed", "read uncommitted"}

    def key_locks(self) -> PostgreSQLKeyLocks:
        return PostgreSQLKeyLocks(self)

    def claim_turn(self, table: Table) -> Executable:
        return claim_turn(table, LOCK_WAIT)

    def lock_wait(self, connection: Connection) -> timedelta:
        milliseconds = connection.exec_driver_sql(_LOCK_TIMEOUT).scalar_one()
        return timedelta(milliseconds=milliseconds) if milliseconds else LOCK_WAIT

    def pause(self, connection: Connection, time: timedelta) -> None:
        connection.exec_driver_sql(f"SELECT pg_sleep({time.total_seconds():.6f})")

    def examination(self) -> PostgreSQLExamination:
        return PostgreSQLExamination(self)

    @classmethod
    def is_lock_timeout(cls, error: BaseException) -> bool:
        return _state_of(error) == _LOCK_NOT_AVAILABLE

    @classmethod
    def is_transient(cls, error: BaseException) -> bool:
        return _state_of(error) in {"40001", "40P01"}  # serialization failure, deadlock

    def schema_changes(self) -> PostgreSQLSchemaChanges:
        return PostgreSQLSchemaChanges(self)


def _state_of(error: BaseException) -> str | None:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _state(process: Process, started: dict[int, int | None], server_started: int) -> OwnerState:
    if process.started < server_started or process.id not in started:
        return OwnerState.DEAD
    seen = started[process.id]
    if seen is None:  # another user's, of which we see the number only
        return OwnerState.UNKNOWN
    return OwnerState.ALIVE if seen == process.started else OwnerState.DEAD


@compiles(utc_now, "postgresql")
def _utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # now() is the time at which the transaction began: in an old transaction a
    # claim would be born expired. clock_timestamp() differs from row to row.
    if not element.clauses.clauses:
        return "statement_timestamp()"
    shift = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() + {shift} * interval '1 microsecond')"
