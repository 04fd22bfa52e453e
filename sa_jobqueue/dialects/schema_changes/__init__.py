"""How tables in use are changed: what ``sa_jobqueue.migration`` asks of a database.

The statements follow: ALTER TABLE with several columns, indexes built online. Alembic's own
operations take one column each, and cannot say ``ALGORITHM=INSTANT``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import MappingProxyType
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


class TableChange(ExecutableDDLElement):
    """An ALTER TABLE; a subclass says what it changes.

    Args:
        ending: the clause behind the changes, such as ``", ALGORITHM=INSTANT"``.
    """

    inherit_cache = False

    def __init__(self, table: Table, *, ending: str = "") -> None:
        self.table = table
        self.ending = ending

    def changes(self, compiler: Any) -> str:
        """Return the changes as SQL of the compiler's dialect."""
        raise NotImplementedError


class AddColumns(TableChange):
    """ALTER TABLE .. ADD COLUMN .., ADD COLUMN .."""

    def __init__(self, table: Table, columns: Sequence[Column[Any]], *, ending: str = "") -> None:
        super().__init__(table, ending=ending)
        self.columns = columns

    def changes(self, compiler: Any) -> str:
        specified = map(compiler.get_column_specification, self.columns)
        return ", ".join(f"ADD COLUMN {column}" for column in specified)


class DropColumns(TableChange):
    """ALTER TABLE .. DROP COLUMN .., DROP COLUMN .."""

    def __init__(self, table: Table, columns: Sequence[Column[Any]], *, ending: str = "") -> None:
        super().__init__(table, ending=ending)
        self.columns = columns

    def changes(self, compiler: Any) -> str:
        names = map(compiler.preparer.format_column, self.columns)
        return ", ".join(f"DROP COLUMN {name}" for name in names)


class SetDefault(TableChange):
    """ALTER TABLE .. ALTER COLUMN .. SET DEFAULT, with the default that the column declares."""

    def __init__(self, column: Column[Any], *, ending: str = "") -> None:
        assert isinstance(column.table, Table)
        super().__init__(column.table, ending=ending)
        self.column = column

    def changes(self, compiler: Any) -> str:
        name = compiler.preparer.format_column(self.column)
        default = compiler.get_column_default_string(self.column)
        literal = default.startswith(("'", "("))  # MySQL wants parentheses around all others
        return f"ALTER COLUMN {name} SET DEFAULT {default if literal else f'({default})'}"


class SetStorage(TableChange):
    """ALTER TABLE .. SET (..) or RESET (..) of storage parameters."""

    def __init__(self, table: Table, parameters: Mapping[str, str], *, reset: bool = False) -> None:
        super().__init__(table)
        self.parameters = parameters
        self.reset = reset

    def changes(self, compiler: Any) -> str:
        if self.reset:
            return f"RESET ({', '.join(self.parameters)})"
        return f"SET ({', '.join(f'{name} = {value}' for name, value in self.parameters.items())})"


class DropIndexByAlter(TableChange):
    """ALTER TABLE .. ADD INDEX .., DROP INDEX a, perhaps also RENAME INDEX b TO a

    Args:
        built: the index that takes the name of the dropped one; None: none does.
        added: names and columns of indexes to add.
    """

    def __init__(
        self,
        index: Index,
        *,
        built: Index | None = None,
        added: Mapping[str, Sequence[str]] = MappingProxyType({}),
        ending: str = "",
    ) -> None:
        assert index.table is not None
        super().__init__(index.table, ending=ending)
        self.index = index
        self.built = built
        self.added = added

    def changes(self, compiler: Any) -> str:
        quote, name = compiler.preparer.quote, compiler.preparer.format_index(self.index)
        changes = [
            f"ADD INDEX {quote(added)} ({', '.join(map(quote, columns))})"
            for added, columns in self.added.items()
        ]
        changes.append(f"DROP INDEX {name}")
        if self.built is not None:
            changes.append(f"RENAME INDEX {compiler.preparer.format_index(self.built)} TO {name}")
        return ", ".join(changes)


@compiles(AddColumns)
@compiles(DropColumns)
@compiles(SetDefault)
@compiles(SetStorage)
@compiles(DropIndexByAlter)
def _alter_table(element: TableChange, compiler: Any, **kw: Any) -> str:
    table = compiler.preparer.format_table(element.table)
    return f"ALTER TABLE {table} {element.changes(compiler)}{element.ending}"


class LockTable(ExecutableDDLElement):
    """LOCK TABLES .. WRITE"""

    inherit_cache = False

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(LockTable)
def _lock_table(element: LockTable, compiler: Any, **kw: Any) -> str:
    return f"LOCK TABLES {compiler.preparer.format_table(element.table)} WRITE"


class OnlineIndex(ExecutableDDLElement):
    """CREATE INDEX or DROP INDEX, with a clause of the database at its end."""

    inherit_cache = False

    def __init__(self, index: Index, *, drop: bool = False, ending: str = "") -> None:
        self.statement = DropIndex(index) if drop else CreateIndex(index)
        self.ending = ending


@compiles(OnlineIndex)
def _online_index(element: OnlineIndex, compiler: Any, **kw: Any) -> str:
    statement: str = compiler.process(element.statement, **kw)
    return statement + element.ending


class RenameIndex(ExecutableDDLElement):
    """ALTER INDEX .. RENAME TO .."""

    inherit_cache = False

    def __init__(self, index: Index, named_as: Index) -> None:
        self.index = index
        self.named_as = named_as


@compiles(RenameIndex)
def _rename_index(element: RenameIndex, compiler: Any, **kw: Any) -> str:
    preparer = compiler.preparer
    schema = preparer.schema_for_object(element.index.table)
    prefix = f"{preparer.quote_schema(schema)}." if schema else ""
    old, new = map(preparer.format_index, (element.index, element.named_as))
    return f"ALTER INDEX {prefix}{old} RENAME TO {new}"
