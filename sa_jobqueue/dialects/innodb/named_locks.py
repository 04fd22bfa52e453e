"""MySQL and MariaDB: GET_LOCK.

Its names are the whole server's, at most 64 characters long, and small letters are the
same as capitals. So what the server is given is a hash of the database's and the lock's
name, behind something readable. GET_LOCK is re-entrant within a session: each lock has
a connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection, text

from ...errors import JobQueueError
from ..connection_locks import ConnectionLocks, Key
from ..lock_connection import Limits
from ..named_locks import Holder, digest, slug

if TYPE_CHECKING:
    from ..capabilities import Database

_READABLE, _HASHED = 31, 32  # with a colon in between 64, the most that the server takes

#: Seconds between two tries, in the last second of a wait: MySQL's GET_LOCK rounds to seconds.
_AGAIN = 0.02

# Where the server's file system knows no small letters, the client may have written
# the same database's name in another way.
_DATABASE = "SELECT IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"

_TAKE = text("SELECT GET_LOCK(:key, :seconds)")
_GIVE = text("SELECT RELEASE_LOCK(:key)")
_HOLDS = text("SELECT IS_USED_LOCK(:key) = CONNECTION_ID()")
_HOLDER = text(
    "SELECT lock_of.id, p.USER, p.HOST FROM (SELECT IS_USED_LOCK(:key) AS id) AS lock_of"
    " LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = lock_of.id"
)


class InnoDBLocks(ConnectionLocks):
    """Locks of one database, by ``GET_LOCK``."""

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
        """Return what the server knows several locks by."""
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
            raise JobQueueError("The server ended the wait for a lock: GET_LOCK answered NULL.")
        return bool(answer)
