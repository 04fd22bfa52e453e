"""Changes of a table as statements: ALTER TABLE with several columns, indexes built online.

Alembic's own operations take one column each, and cannot say ``ALGORITHM=INSTANT``.
The caller hands in what differs between databases: see
:class:`~sa_jobqueue.dialects.schema_changes.SchemaChanges`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column, Index, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, DropIndex, ExecutableDDLElement


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
