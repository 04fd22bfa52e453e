"""MySQL and MariaDB: named locks are GET_LOCK.

Its names are shared by the whole server, at most 64 characters long, and ignore case. So
the server gets a readable part and a hash of the database's and the lock's name. GET_LOCK
is re-entrant within a session: so each lock has a connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Connection, text

from ...errors import JobQueueError
from ..capabilities import Capabilities
from ..named_locks import ConnectionLocks, Holder, Key, digest, slug
from ..watched_connection import Limits

_READABLE, _HASHED = 31, 32  # and a colon: 64, the longest name that the server takes

#: Seconds between two tries in the last second of a wait: MySQL's GET_LOCK waits whole seconds.
_AGAIN = 0.02

#: Locks that one statement asks for.
_AT_ONCE = 500

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
    """Locks of one database, by ``GET_LOCK``."""

    limits: ClassVar[Limits] = Limits(silence=timedelta(seconds=585))
    wait: ClassVar[float] = 1.0

    def __init__(self, database: Capabilities, *, statement_limit: str) -> None:
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
        for start in range(0, len(keys), _AT_ONCE):
            held.update(_held_among(connection, keys[start : start + _AT_ONCE]))
        return held


def _held_among(connection: Connection, keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Ask by one statement which locks somebody has, and return their names."""
    bound = {f"key_{number}": key for number, (_, key) in enumerate(keys)}
    asked = ", ".join(f"IS_USED_LOCK(:{parameter})" for parameter in bound)
    holders = connection.execute(text(f"SELECT {asked}"), bound).one()
    return (name for (name, _), holder in zip(keys, holders, strict=True) if holder is not None)
