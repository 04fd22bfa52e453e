"""PostgreSQL: named locks are advisory locks of a session, by a 64-bit hash of the name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import BigInteger, Connection, bindparam, text

from ..driver_errors import driver_errors
from ..named_locks import ConnectionLocks, Holder, Key, digest
from ..watched_connection import Limits
from .sqlstate import LOCK_NOT_AVAILABLE, sqlstate

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
    """Locks of one database, by ``pg_advisory_lock``."""

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
