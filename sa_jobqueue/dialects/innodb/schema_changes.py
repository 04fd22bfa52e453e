"""MySQL and MariaDB: each change commits by itself, and lets others write where it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Connection, Index, Table
from sqlalchemy.schema import ExecutableDDLElement

from ..capabilities import Version
from ..ddl import LockTable, SwapIndex
from ..schema_changes import SchemaChanges
from .lock_wait_limit import limited_table_wait, waiting_at_most

_ONLINE = " ALGORITHM=INPLACE LOCK=NONE"


class InnoDBSchemaChanges(SchemaChanges):
    """What MySQL and MariaDB have in common.

    Attributes:
        instant_since: the versions since which a column is added, and dropped, without
            a rebuild of the table.
    """

    instant_since: ClassVar[tuple[Version, Version]]

    together: ClassVar[bool] = False
    create_online: ClassVar[str] = _ONLINE

    # lock_wait_timeout limits the wait for the lock of the table's definition, which every
    # open transaction that used the table shares. One second is MySQL's shortest setting;
    # limited_table_wait() halves it.
    begins: ClassVar[tuple[str, ...]] = (
        "SET @sa_jobqueue_lock_wait = @@lock_wait_timeout, lock_wait_timeout = 1",
    )
    ends: ClassVar[tuple[str, ...]] = ("SET lock_wait_timeout = @sa_jobqueue_lock_wait",)
    fails: ClassVar[tuple[str, ...]] = ends

    def instant(self, *, drop: bool = False) -> str:
        if self.database.at_least(*self.instant_since[drop]):
            return ", ALGORITHM=INSTANT"
        return ", ALGORITHM=INPLACE, LOCK=NONE"

    def swap(self, index: Index, built: Index) -> list[ExecutableDDLElement]:
        return [SwapIndex(index, built, ending=", ALGORITHM=INPLACE, LOCK=NONE")]

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        # Each change commits. A transaction that reads the table in between blocks the next change.
        return LockTable(table), "UNLOCK TABLES"

    def longest_wait(self, connection: Connection) -> timedelta:
        return timedelta(seconds=1)

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        return waiting_at_most(connection, time)

    @contextmanager
    def limited_table_wait(self, connection: Connection) -> Iterator[None]:
        number = self.database.backend(connection)
        assert number is not None
        with limited_table_wait(connection, number):
            yield


class MySQLSchemaChanges(InnoDBSchemaChanges):
    """How MySQL changes tables."""

    drop_online: ClassVar[str] = _ONLINE
    instant_since: ClassVar[tuple[Version, Version]] = ((8, 0, 12), (8, 0, 29))


class MariaDBSchemaChanges(InnoDBSchemaChanges):
    """How MariaDB changes tables; its DROP INDEX has no clause that lets others write."""

    instant_since: ClassVar[tuple[Version, Version]] = ((10, 3, 2), (10, 4))
