"""How tables in use are changed: what ``sa_jobqueue.migration`` asks of a database.

The statements follow: ALTER TABLE with several columns, indexes built online. Alembic's own
operations take one column each, and cannot say ``ALGORITHM=INSTANT``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Index, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, DropIndex, ExecutableDDLElement

from ..capabilities import Capabilities


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
        return online_index(index, drop=True)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        """Return the statements that drop an index, and give its name to another.

        Args:
            connection: None: offline.
        """
        return [online_index(index, drop=True), rename_index(built, index)]

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

    def partitions(self, connection: Connection, table: Table) -> list[tuple[str, str]] | None:
        """Return schema and name of each partition with rows; None: the table has no partitions."""
        return None

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        """Return the storage parameters that suit a table whose rows change often."""
        return {}


class Statement(ExecutableDDLElement):
    """A statement, which a function writes with the compiler of the database's dialect."""

    inherit_cache = False

    def __init__(self, write: Callable[[Any], str]) -> None:
        self.write = write


@compiles(Statement)
def _compile(element: Statement, compiler: Any, **kw: Any) -> str:
    return element.write(compiler)


def alter_table(
    table: Table, changes: Callable[[Any], Sequence[str]], *, ending: str = ""
) -> Statement:
    """Return an ALTER TABLE.

    Args:
        ending: the clause behind the changes, such as ``", ALGORITHM=INSTANT"``.
    """

    def write(to: Any) -> str:
        return f"ALTER TABLE {to.preparer.format_table(table)} {', '.join(changes(to))}{ending}"

    return Statement(write)


def add_columns(table: Table, columns: Sequence[Column[Any]], *, ending: str) -> Statement:
    """ALTER TABLE .. ADD COLUMN .., ADD COLUMN .."""

    def changes(to: Any) -> list[str]:
        return [f"ADD COLUMN {to.get_column_specification(column)}" for column in columns]

    return alter_table(table, changes, ending=ending)


def drop_columns(table: Table, columns: Sequence[Column[Any]], *, ending: str) -> Statement:
    """ALTER TABLE .. DROP COLUMN .., DROP COLUMN .."""

    def changes(to: Any) -> list[str]:
        return [f"DROP COLUMN {to.preparer.format_column(column)}" for column in columns]

    return alter_table(table, changes, ending=ending)


def set_default(table: Table, column: Column[Any], *, ending: str) -> Statement:
    """ALTER TABLE .. ALTER COLUMN .. SET DEFAULT, with the default that the column declares."""

    def changes(to: Any) -> list[str]:
        default = to.get_column_default_string(column)
        if not default.startswith(("'", "(")):  # MySQL wants parentheses around all others
            default = f"({default})"
        return [f"ALTER COLUMN {to.preparer.format_column(column)} SET DEFAULT {default}"]

    return alter_table(table, changes, ending=ending)


def drop_index_by_alter(
    index: Index, added: Mapping[str, Sequence[str]], *, built: Index | None = None, ending: str
) -> Statement:
    """ALTER TABLE .. ADD INDEX .., DROP INDEX a, perhaps also RENAME INDEX b TO a

    Args:
        added: names and columns of indexes to add.
        built: the index that takes the name of the dropped one; None: none does.
    """

    def changes(to: Any) -> list[str]:
        quote, named = to.preparer.quote, to.preparer.format_index
        found = [
            f"ADD INDEX {quote(name)} ({', '.join(map(quote, added[name]))})" for name in added
        ]
        renamed = [] if built is None else [f"RENAME INDEX {named(built)} TO {named(index)}"]
        return [*found, f"DROP INDEX {named(index)}", *renamed]

    assert index.table is not None
    return alter_table(index.table, changes, ending=ending)


def online_index(index: Index, *, drop: bool = False, ending: str = "") -> Statement:
    """CREATE INDEX or DROP INDEX, with a clause of the database at its end."""
    statement = DropIndex(index) if drop else CreateIndex(index)
    return Statement(lambda to: to.process(statement) + ending)


def rename_index(index: Index, named_as: Index) -> Statement:
    """ALTER INDEX .. RENAME TO .."""

    def write(to: Any) -> str:
        schema = to.preparer.schema_for_object(index.table)
        prefix = f"{to.preparer.quote_schema(schema)}." if schema else ""
        old, new = map(to.preparer.format_index, (index, named_as))
        return f"ALTER INDEX {prefix}{old} RENAME TO {new}"

    return Statement(write)
