"""Plain rows of a claim: the table's columns as they are after the claim."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, DateTime, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ..dialects.clock import UtcText, as_utc
from .mapping import TIME_ROLES, QueueMapping
from .transitions import claimed


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
    during: str | None = None,
    moment: ColumnElement[Any] | None = None,
    *,
    orm: bool = False,
) -> list[ColumnElement[Any]]:
    """List the table's columns for a row.

    Args:
        during: the status that a claim is about to write: the columns have the values
            of the claim; None: the columns as they are.
        moment: the time that the claim writes.
        orm: as mapped attributes, so that hooks of the session can add criteria.
    """
    written = claimed(mapping, during, moment) if during and moment is not None else {}
    times = {mapping.column(role) for role in TIME_ROLES if mapping.has(role)}
    return [
        _named(_read(_value(mapping, column, written, orm), is_time=column in times), column)
        for column in mapping.table.c
    ]


def _named(value: Any, column: Column[Any]) -> Any:
    return value if value is column and column.name == column.key else value.label(column.key)


def _value(mapping: QueueMapping, column: Column[Any], written: Any, orm: bool) -> Any:
    if column in written or not orm or not mapping.mapper.columns.contains_column(column):
        return written.get(column, column)
    return getattr(mapping.entity, mapping.mapper.get_property_by_column(column).key)


def _read(value: Any, *, is_time: bool) -> Any:
    told = is_time and not isinstance(value.type, UtcText)
    return type_coerce(value, ReadAsUTC) if told else value
