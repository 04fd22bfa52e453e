"""PostgreSQL: advisory locks of a session, by a 64-bit number made of the name."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ..connection_locks import ConnectionLocks, Key
from ..lock_connection import Limits
from ..named_locks import Holder, digest

_LOCK_NOT_AVAILABLE = "55P03"  # lock_timeout

# Of those that this server's version has.
_SET = text(
    "SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN :silence ELSE '0' END,"
    " false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'statement_timeout',"
    " 'transaction_timeout')"
)
_SET_WAIT = text("SELECT set_config('lock_timeout', :milliseconds, false)")

_TRY = text("SELECT pg_try_advisory_lock(CAST(:key AS bigint))")
_WAIT = text("SELECT pg_advisory_lock(CAST(:key AS bigint))")
_GIVE = text("SELECT pg_advisory_unlock(CAST(:key AS bigint))")

# objsubid 1: a key of 64 bits; 2 would be two of 32.
_LOCKS = (
    "FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = CAST(:key AS bigint)"
)
_HOLDER = text(f"SELECT l.pid, a.usename, host(a.client_addr), a.application_name {_LOCKS}")
_HOLDS = text(f"SELECT EXISTS (SELECT 1 {_LOCKS} AND l.pid = pg_backend_pid())")


class PostgreSQLLocks(ConnectionLocks):
    """Locks of one database, by ``pg_advisory_lock``."""

    limits: ClassVar[Limits] = Limits(silence=timedelta(seconds=110))
    wait: ClassVar[float] = 2.0

    def prepare(self, connection: Connection) -> None:
        self.database.notice_silence(connection)
        milliseconds = self.limits.silence // timedelta(milliseconds=1)
        connection.execute(_SET, {"silence": str(milliseconds)})

    def key(self, connection: Connection, name: str) -> Key:
        return int.from_bytes(digest(name)[:8], "big", signed=True)

    def take(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        milliseconds = int(seconds * 1000)
        if not milliseconds:  # to the server, 0 is no limit
            return bool(connection.scalar(_TRY, {"key": key}))
        connection.execute(_SET_WAIT, {"milliseconds": str(milliseconds)})
        try:
            connection.execute(_WAIT, {"key": key})
        except DBAPIError as error:
            if _sqlstate(error) == _LOCK_NOT_AVAILABLE:
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


def _sqlstate(error: DBAPIError) -> str | None:
    # psycopg 3 and asyncpg; psycopg 2; pg8000.
    for name in ("sqlstate", "pgcode"):
        state: str | None = getattr(error.orig, name, None)
        if state:
            return state
    fields = error.orig.args[0] if error.orig and error.orig.args else None
    return fields.get("C") if isinstance(fields, dict) else None
