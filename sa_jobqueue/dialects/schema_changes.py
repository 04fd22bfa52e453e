"""How tables in use are changed: what ``sa_jobqueue.migration`` asks of a database.

The statements are in :mod:`sa_jobqueue.dialects.ddl`; the clauses with which they end are here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Index, Table
from sqlalchemy.schema import ExecutableDDLElement

from .capabilities import Capabilities
from .ddl import OnlineIndex, RenameIndex


class SchemaChanges:
    """How one kind of database changes tables; the answers here are those of most.

    Attributes:
        sets_defaults: ALTER TABLE gives a column another default. Without it there is
            :meth:`replace_column`, for which every row must store a value of its own.
        alters_many: one ALTER TABLE adds, or drops, several columns.
        concurrent_indexes: CREATE INDEX CONCURRENTLY, outside of a transaction; when it
            fails, it leaves an invalid index.
        create_online: the clause at the end of CREATE INDEX that lets others go on writing.
        builds_beside: an index is built beside the one that it replaces, and takes its name.
        partitions_apart: the partitions of a table have indexes and storage parameters
            of their own, which are made partition by partition.
        together: several changes are one transaction.
        begins: the statements before those of one change. They make the change atomic, and let
            it wait only a moment for locks, since everybody who comes later waits behind it.
        ends: the statements after those of a change.
        fails: the statements after a change that failed.
    """

    sets_defaults: ClassVar[bool] = True
    alters_many: ClassVar[bool] = True
    concurrent_indexes: ClassVar[bool] = False
    create_online: ClassVar[str] = ""
    builds_beside: ClassVar[bool] = True
    partitions_apart: ClassVar[bool] = False
    together: ClassVar[bool] = True
    begins: ClassVar[tuple[str, ...]] = ("BEGIN",)
    ends: ClassVar[tuple[str, ...]] = ("COMMIT",)
    fails: ClassVar[tuple[str, ...]] = ("ROLLBACK",)

    def __init__(self, database: Capabilities) -> None:
        self.database = database

    def instant(self, *, drop: bool = False) -> str:
        """Return the clause at the end of ALTER TABLE that refuses a change which rewrites rows."""
        return ""

    def declares(self, connection: Connection, column: Column[Any]) -> bool:
        """Tell whether the table's stored text has a column just so; without `sets_defaults`."""
        raise NotImplementedError

    def replace_column(
        self, connection: Connection, column: Column[Any], declared: Column[Any]
    ) -> None:
        """Declare a column of the table's stored text in another way; without `sets_defaults`."""
        raise NotImplementedError

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        """Return the statements that lock and unlock a table around several changes.

        None: the changes are one transaction, which needs no such lock.
        """
        return None

    def drop_index(self, index: Index, connection: Connection | None) -> ExecutableDDLElement:
        """Return the statement that drops an index, and lets others go on writing where it can.

        Args:
            connection: None: offline.
        """
        return OnlineIndex(index, drop=True)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        """Return the statements that drop an index, and give its name to another.

        Args:
            connection: None: offline.
        """
        return [OnlineIndex(index, drop=True), RenameIndex(built, index)]

    def without_transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """Inside, no transaction is open that an application's settings begin under AUTOCOMMIT."""
        return nullcontext()

    def longest_wait(self, connection: Connection) -> timedelta:
        """Return how long one attempt of a change waits for a lock, at most."""
        return self.database.lock_wait(connection)

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        """Inside, give up on locks of tables and rows after this time.

        Enter it outside of any transaction.
        """
        return nullcontext()

    def limited_table_wait(self, connection: Connection) -> AbstractContextManager[None]:
        """Inside, interrupt a statement that waits for a table's lock.

        For databases whose shortest setting is too long. The statement's error is the
        same as that of the setting: see :meth:`Capabilities.is_lock_timeout`.
        """
        return nullcontext()

    def partitions(self, connection: Connection, table: Table) -> list[tuple[str, str]] | None:
        """Return schema and name of each partition with rows; None: the table has no partitions."""
        return None

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        """Return the storage parameters that suit a table whose rows change often."""
        return {}
