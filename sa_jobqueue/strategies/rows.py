"""Jobs as plain rows: the columns of the table, with times in UTC; and how entities load."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, DateTime, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import selectinload
from sqlalchemy.types import TypeDecorator

from ..dialects.clock import UtcText, as_utc
from ..model.mapping import TIME_ROLES, QueueMapping


class ReadAsUTC(TypeDecorator[datetime]):
    """A type that reads points in time as aware UTC; for result columns, never for a table.

    The rows of a claim have the same owner_date, so it is converted once for all of them.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Return a function that makes a driver's value aware UTC, and remembers the last one."""
        read = self.impl_instance.result_processor(dialect, coltype)
        known: tuple[Any, datetime | None] = (None, None)

        def in_utc(value: Any) -> datetime | None:
            nonlocal known
            last, moment = known
            if value != last:
                found = value if read is None else read(value)
                moment = None if found is None else as_utc(found)
                known = (value, moment)
            return moment

        return in_utc


def row_columns(
    mapping: QueueMapping,
    written: Mapping[Column[Any], Any] | None = None,
    *,
    orm: bool = False,
) -> list[ColumnElement[Any]]:
    """List the table's columns for a row.

    Args:
        written: what a claim is about to write: these columns have their new values.
        orm: as mapped attributes, so that hooks of the session can add criteria.
    """
    times = {mapping.column(role) for role in TIME_ROLES if mapping.has(role)}
    columns = []
    for column in mapping.table.c:
        value: Any = column
        if written and column in written:
            value = written[column]
        elif orm and mapping.mapper.columns.contains_column(column):
            value = getattr(mapping.entity, mapping.mapper.get_property_by_column(column).key)
        if column in times and not isinstance(value.type, UtcText):
            value = type_coerce(value, ReadAsUTC)
        plain = value is column and column.name == column.key
        columns.append(value if plain else value.label(column.key))
    return columns


def loading_options(mapping: QueueMapping) -> list[Any]:
    """List options for a SELECT of entities that locks: no joins but the entity's own.

    FOR UPDATE is refused on the nullable side of an outer join, and would lock the
    joined rows elsewhere.
    """
    return [
        selectinload(getattr(mapping.entity, relationship.key))
        for relationship in mapping.mapper.relationships
        if relationship.lazy in ("joined", False)
    ]
