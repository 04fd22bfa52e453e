"""InnoDB: each change commits by itself, beside others' writes where it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection

from ..schema_changes import SchemaChanges
from .brief_waits import brief_waits

if TYPE_CHECKING:
    from ..capabilities import Version
    from .database import InnoDB

#: How long a connection waits: for a row, and for the definition of a table.
_ROWS_WAIT, _TABLES_WAIT = "innodb_lock_wait_timeout", "lock_wait_timeout"

_ONLINE = " ALGORITHM=INPLACE LOCK=NONE"


class InnoDBSchemaChanges(SchemaChanges):
    """The common ground of MySQL and MariaDB.

    Attributes:
        instant_since: since when a column is added, and since when one is dropped,
            without a rebuild.
    """

    database: InnoDB
    instant_since: ClassVar[tuple[Version, Version]]

    together: ClassVar[bool] = False
    create_online: ClassVar[str] = _ONLINE

    # The variable's limit is for the lock of the table's definition, which every open
    # transaction that used it shares. One second is the shortest that MySQL knows:
    # brief_waits() halves it.
    begins: ClassVar[tuple[str, ...]] = (
        "SET @sa_jobqueue_lock_wait = @@lock_wait_timeout, lock_wait_timeout = 1",
    )
    ends: ClassVar[tuple[str, ...]] = ("SET lock_wait_timeout = @sa_jobqueue_lock_wait",)
    fails: ClassVar[tuple[str, ...]] = ends

    def instant(self, *, drop: bool = False) -> str:
        if self.database.at_least(*self.instant_since[drop]):
            return ", ALGORITHM=INSTANT"
        return ", ALGORITHM=INPLACE, LOCK=NONE"

    def table_lock(self, table: str) -> tuple[str, str] | None:
        # Each change commits. Whoever reads the table in between keeps the next one out.
        return f"LOCK TABLES {table} WRITE", "UNLOCK TABLES"

    def longest_wait(self, connection: Connection) -> timedelta:
        return timedelta(seconds=1)

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        own = connection.exec_driver_sql(f"SELECT @@{_ROWS_WAIT}, @@{_TABLES_WAIT}").one()
        _limit_waits(connection, *[max(1, round(time.total_seconds()))] * 2)
        try:
            yield
        finally:
            _limit_waits(connection, *own)

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        number = self.database.backend(connection)
        assert number is not None
        with brief_waits(connection, number, self.database.process_list):
            yield


class MySQLSchemaChanges(InnoDBSchemaChanges):
    """The changes of MySQL."""

    drop_online: ClassVar[str] = _ONLINE
    instant_since: ClassVar[tuple[Version, Version]] = ((8, 0, 12), (8, 0, 29))


class MariaDBSchemaChanges(InnoDBSchemaChanges):
    """The changes of MariaDB, which has no words for a DROP INDEX beside writers."""

    instant_since: ClassVar[tuple[Version, Version]] = ((10, 3, 2), (10, 4))


def _limit_waits(connection: Connection, rows: int, tables: int) -> None:
    connection.exec_driver_sql(f"SET {_ROWS_WAIT} = {rows:d}, {_TABLES_WAIT} = {tables:d}")
