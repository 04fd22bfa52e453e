"""How tables in use are changed: what ``sa_jobqueue.migration`` asks of a database.

:mod:`sa_jobqueue.dialects.ddl` has the statements; the endings that are said here stand
behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection, Table

if TYPE_CHECKING:
    from .capabilities import Database


class SchemaChanges:
    """The changes of one kind of database; here are the answers of most.

    Attributes:
        keeps_added_default: rows that were there before ADD COLUMN keep the default that
            it named, also when the column's default is another one later.
        alters_many: one ALTER TABLE adds, or drops, several columns.
        concurrent_indexes: CREATE INDEX CONCURRENTLY, in no transaction; it leaves a
            broken index when it fails.
        create_online, drop_online: what CREATE INDEX and DROP INDEX end with, so that
            writers go on.
        partitions_apart: a partitioned table's indexes are built on each partition apart,
            and its storage parameters are those of its partitions.
        together: several changes are one transaction.
        begins, ends, fails: what surrounds the statements of one change, so that they are
            one, and wait for others' locks for a moment only: behind whom they wait,
            everybody else waits.
    """

    keeps_added_default: ClassVar[bool] = True
    alters_many: ClassVar[bool] = True
    concurrent_indexes: ClassVar[bool] = False
    create_online: ClassVar[str] = ""
    drop_online: ClassVar[str] = ""
    partitions_apart: ClassVar[bool] = False
    together: ClassVar[bool] = True
    begins: ClassVar[tuple[str, ...]] = ("BEGIN",)
    ends: ClassVar[tuple[str, ...]] = ("COMMIT",)
    fails: ClassVar[tuple[str, ...]] = ("ROLLBACK",)

    def __init__(self, database: Database) -> None:
        self.database = database

    def instant(self, *, drop: bool = False) -> str:
        """Return what ALTER TABLE ends with, so that it is refused where it would write rows."""
        return ""

    def table_lock(self, table: str) -> tuple[str, str] | None:
        """Return what locks a table over several changes, and unlocks it; None: needless.

        Args:
            table: its name, as it stands in SQL.
        """
        return None

    def longest_wait(self, connection: Connection) -> timedelta:
        """Return how long each try of a change waits for a lock, at most."""
        return self.database.lock_wait(connection)

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        """Give up on locks of tables and of rows after this time.

        To be entered outside of any transaction.
        """
        yield

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        """Interrupt a statement that waits for a table's lock, where no setting is short enough.

        Its error is as that of the setting; see :meth:`Database.is_lock_timeout`.
        """
        yield

    def partitions(self, connection: Connection, table: Table) -> list[tuple[str, str]] | None:
        """Return schema and name of each partition with rows; None: the table is not divided."""
        return None

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        """Return the storage parameters that suit a table whose rows change often."""
        return {}
