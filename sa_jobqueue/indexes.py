"""The two indexes of a queue: one that claims walk, one that reapers walk.

The claim index is (equality columns, status, order columns, primary key): then
a claim of n rows reads n entries and sorts nothing. One column short, and
InnoDB locks every row that it has to sort. On PostgreSQL and SQLite it holds
only the claimable rows, so that it stays small however many are done.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnElement, Index, Table
from sqlalchemy.sql.elements import UnaryExpression

from .mapping import QueueMapping, status_is
from .status import CLAIMED

#: The shortest limit of the engines: PostgreSQL cuts names at 63 bytes.
_NAME_LENGTH = 63

# Not in Table.info, which Alembic renders into migrations.
_indexes: WeakKeyDictionary[Table, dict[str, Index]] = WeakKeyDictionary()


def add_indexes(mapping: QueueMapping) -> None:
    """Attach the claim index and the reaper index to the mapped table, once."""
    status = mapping.column("status")
    _add(
        mapping.table,
        "claim",
        claim_index_columns(mapping),
        status_is(status, *mapping.ready),
        # SQLite proves `status = 'a'` from the very same term only, not from an IN.
        sqlite_where=len(mapping.ready) == 1,
    )
    _add(
        mapping.table,
        "reap",
        [status, mapping.column("owner_date")],
        status_is(status, mapping.word(CLAIMED)),
    )


def claim_index_columns(mapping: QueueMapping) -> list[ColumnElement[Any]]:
    """List the columns of the claim index: equality, status, order, primary key."""
    leading = [*mapping.equality, mapping.column("status"), *mapping.order]
    columns = [_table_column(mapping, column) for column in leading]
    plain = {_plain(column) for column in columns}
    return [*columns, *(key for key in mapping.keys if key not in plain)]


def _table_column(mapping: QueueMapping, column: Any) -> ColumnElement[Any]:
    if isinstance(column, UnaryExpression):
        return _table_column(mapping, column.element).desc()
    if isinstance(column, Column):
        return column
    found: ColumnElement[Any] = mapping.mapper.columns[column.key]
    return found


def _plain(column: Any) -> Any:
    return column.element if isinstance(column, UnaryExpression) else column


def _add(
    table: Table,
    purpose: str,
    columns: list[Any],
    where: ColumnElement[bool],
    *,
    sqlite_where: bool = True,
) -> None:
    name = index_name(table, purpose)
    there = [index for index in table.indexes if index.name == name]
    if there:
        _indexes.setdefault(table, {})[purpose] = there[0]
        return
    if any(_plain(column).table is not table for column in columns):
        return  # joined inheritance, ordered by a column of another table
    partial: dict[str, Any] = {"postgresql_where": where}
    if sqlite_where:
        partial["sqlite_where"] = where
    _indexes.setdefault(table, {})[purpose] = Index(name, *columns, **partial)


def claim_index(mapping: QueueMapping) -> Index | None:
    """Return the claim index of a mapped table; None where it could not have one."""
    return _indexes.get(mapping.table, {}).get("claim")


def index_name(table: Table, purpose: str) -> str:
    """Return the name of a queue's index: ``ix_<table>_<purpose>``, at most 63 long.

    A naming convention that asks for a constraint name gets the purpose.
    """
    convention = table.metadata.naming_convention.get("ix")
    if isinstance(convention, str) and "%(constraint_name)s" in convention:
        return purpose
    name = f"ix_{table.name}_{purpose}"
    if len(name.encode()) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:8]
    room = _NAME_LENGTH - len(f"ix__{digest}_{purpose}")
    return f"ix_{table.name.encode()[:room].decode(errors='ignore')}_{digest}_{purpose}"
