"""The two indexes of a queue: one that claims walk, one that reapers walk.

The claim index is (equality columns, status, order columns, primary key): then
a claim of n rows reads n entries and sorts nothing. One column short, and
InnoDB locks every row that it has to sort. On PostgreSQL and SQLite it holds
only the claimable rows, so that it stays small however many are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnElement, Index, Table
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import replacement_traverse

from .errors import ArgumentError
from .mapping import QueueMapping, status_is
from .status import CLAIMED

#: The shortest limit of the engines: PostgreSQL cuts names at 63 bytes.
_NAME_LENGTH = 63

# Not in Table.info, which Alembic renders into migrations.
_indexes: WeakKeyDictionary[Table, dict[str, Index]] = WeakKeyDictionary()

_RANGES = {
    operators.lt,
    operators.le,
    operators.gt,
    operators.ge,
    operators.between_op,
}


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
    if not isinstance(column, InstrumentedAttribute):
        return column  # type: ignore[no-any-return]  # an expression, as the criteria have it
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


def index_of(table: Table, purpose: str) -> Index | None:
    """Return a mapped table's index for claims, ``"claim"``, or for reapers, ``"reap"``."""
    return _indexes.get(table, {}).get(purpose)


def index_serving(
    mapping: QueueMapping,
    where: Sequence[ColumnElement[bool]],
    *,
    order: Sequence[ColumnElement[Any]],
    ready: str | None = None,
    name: str | None = None,
) -> Index:
    """Make the index that finds rows by a predicate, in an order; it is on no table.

    Args:
        where: criteria. Those that compare for equality lead the index; without a
            mixin, one that asks for a range comes behind them.
        order: the claim order, without the primary key that ends it.
        ready: the status that is claimed, where the class has one.

    Raises:
        ArgumentError: no index finds the range and has the order too.
    """
    leading = list(_compared(where, {operators.eq}))
    partial: dict[str, Any] = {}
    if ready is not None:
        status = mapping.column("status")
        leading.append(status)
        criterion = status_is(status, ready)
        partial = {"postgresql_where": criterion, "sqlite_where": criterion}
        behind = [*order]
    else:
        behind = _range_and_order(mapping, list(_compared(where, _RANGES)), order)
    columns = [_table_column(mapping, column) for column in (*leading, *behind)]
    plain = {_plain(column) for column in columns}
    columns += [key for key in mapping.keys if key not in plain]
    index = Index(name or index_name(mapping.table, "claim"), *columns, **partial)
    mapping.table.indexes.discard(index)
    return index


def twin(
    index: Index, *, name: str | None = None, table: Table | None = None, **options: Any
) -> Index:
    """Make an index like another, with further options, which is on no table.

    Args:
        table: another one with the same columns, such as a partition.
    """
    expressions = index.expressions if table is None else _moved(index.expressions, table)
    made = Index(
        name or index.name, *expressions, unique=index.unique, **index.dialect_kwargs, **options
    )
    assert made.table is not None
    made.table.indexes.discard(made)
    return made


def _moved(expressions: Iterable[Any], table: Table) -> list[Any]:
    def other(element: Any, **kw: Any) -> Any:
        if isinstance(element, ColumnClause) and element.table is not None:
            return table.c[element.name]
        return None

    return [replacement_traverse(expression, {}, other) for expression in expressions]


def _range_and_order(
    mapping: QueueMapping,
    ranges: Sequence[ColumnElement[Any]],
    order: Sequence[ColumnElement[Any]],
) -> list[ColumnElement[Any]]:
    if not order or not ranges:
        return [*order, *ranges[:1]]
    if not any(_plain(order[0]).compare(each) for each in ranges):
        raise ArgumentError(
            f"no index of {mapping.table.description!r} finds the range of {ranges[0]} and has the "
            f"order by {order[0]} too: each claim would sort all rows of the range. Order by the "
            "range's own column, or leave the order out; or go through the rows in rounds, where "
            "the round is compared for equality"
        )
    return list(order)


def _compared(where: Iterable[Any], how: set[Any]) -> Iterator[ColumnElement[Any]]:
    """Yield what the criteria compare in one of these ways, each once."""
    seen: list[ColumnElement[Any]] = []
    for criterion in where:
        operator = getattr(criterion, "operator", None)
        if operator is operators.and_:
            found = list(_compared(criterion.clauses, how))
        else:
            found = [criterion.left] if operator in how else []
        for column in found:
            if not any(column.compare(other) for other in seen):
                seen.append(column)
                yield column


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
