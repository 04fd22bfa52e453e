"""MySQL and MariaDB: each change commits by itself, and lets others write where it can."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, Index, Table, inspect
from sqlalchemy.schema import ExecutableDDLElement

from ..capabilities import Version
from ..innodb import waiting_at_most
from . import SchemaChanges, Statement, drop_index_by_alter

_ONLINE = ", ALGORITHM=INPLACE, LOCK=NONE"


class InnoDBSchemaChanges(SchemaChanges):
    """What MySQL and MariaDB have in common.

    Attributes:
        instant_since: the versions since which a column is added, and dropped, without
            a rebuild of the table.
    """

    instant_since: ClassVar[tuple[Version, Version]]

    together: ClassVar[bool] = False
    create_online: ClassVar[str] = " ALGORITHM=INPLACE LOCK=NONE"

    # lock_wait_timeout limits the wait for the lock of the table's definition, which every
    # open transaction that used the table shares. One second is the shortest setting.
    begins: ClassVar[tuple[str, ...]] = (
        "SET @sa_jobqueue_lock_wait = @@lock_wait_timeout, lock_wait_timeout = 1",
    )
    ends: ClassVar[tuple[str, ...]] = ("SET lock_wait_timeout = @sa_jobqueue_lock_wait",)
    fails: ClassVar[tuple[str, ...]] = ends

    def instant(self, *, drop: bool = False) -> str:
        if self.database.at_least(*self.instant_since[drop]):
            return ", ALGORITHM=INSTANT"
        return _ONLINE

    def drop_index(self, index: Index, connection: Connection | None) -> ExecutableDDLElement:
        # MariaDB's DROP INDEX has no clause that lets others write.
        return drop_index_by_alter(index, _for_references(index, connection), ending=_ONLINE)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        added = _for_references(index, connection)
        return [drop_index_by_alter(index, added, built=built, ending=_ONLINE)]

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        # Each change commits. A transaction that reads the table in between blocks the next change.
        lock = Statement(lambda to: f"LOCK TABLES {to.preparer.format_table(table)} WRITE")
        return lock, "UNLOCK TABLES"

    def longest_wait(self, connection: Connection) -> timedelta:
        return timedelta(seconds=1)

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        return waiting_at_most(connection, time)


class MySQLSchemaChanges(InnoDBSchemaChanges):
    """How MySQL changes tables."""

    instant_since: ClassVar[tuple[Version, Version]] = ((8, 0, 12), (8, 0, 29))


class MariaDBSchemaChanges(InnoDBSchemaChanges):
    """How MariaDB changes tables."""

    instant_since: ClassVar[tuple[Version, Version]] = ((10, 3, 2), (10, 4))


def _for_references(index: Index, connection: Connection | None) -> dict[str, list[str]]:
    """Return the indexes that foreign keys need when another index is dropped.

    InnoDB makes an index for each foreign key. It drops that index as soon as another index begins
    with the same columns, and then refuses to drop the other one. The new index has the name of the
    foreign key, as InnoDB's own has, so that Alembic does not take it for a change.
    """
    if connection is None or index.table is None:
        return {}
    name, schema = index.table.name, connection.schema_for_object(index.table)
    inspector: Any = inspect(connection)
    columns = {
        found["name"]: found["column_names"] for found in inspector.get_indexes(name, schema=schema)
    }
    preparer = connection.dialect.identifier_preparer
    dropped = columns.pop(preparer.format_index(index).strip("`"), [])
    key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    others = [*columns.values(), key]
    needed: dict[str, list[str]] = {}
    for reference in inspector.get_foreign_keys(name, schema=schema):
        own = reference["constrained_columns"]
        if dropped[: len(own)] == own and not any(each[: len(own)] == own for each in others):
            needed[str(reference["name"])] = own
            others.append(own)
    return needed
