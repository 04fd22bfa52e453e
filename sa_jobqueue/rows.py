"""Claimed rows without entities: the columns as they are after the claim."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, DateTime, bindparam, literal_column, type_coerce
from sqlalchemy.types import TypeDecorator

from .clock import as_utc, utc_now
from .mapping import QueueMapping
from .status import status_word


class ReadAsUTC(TypeDecorator[datetime]):
    """Reads a point in time as aware UTC; for result columns, never for a table."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Attach UTC to what the engine returned."""
        return None if value is None else as_utc(value)


def word_literal(word: str) -> ColumnElement[str]:
    """Return a status word as an SQL literal."""
    return literal_column(f"'{status_word(word)}'")


def claimed_columns(
    mapping: QueueMapping, during: str, owner_date: ColumnElement[Any]
) -> dict[Column[Any], Any]:
    """Return what a claim writes: the columns with their new values."""
    owner = mapping.column("owner")
    written: dict[Column[Any], Any] = {
        mapping.column("status"): word_literal(during),
        owner: bindparam("claim_owner", type_=owner.type),
        mapping.column("owner_date"): owner_date,
    }
    if mapping.has("attempts"):
        attempts = mapping.column("attempts")
        written[attempts] = attempts + 1
    return written


def row_columns(mapping: QueueMapping, during: str | None) -> list[ColumnElement[Any]]:
    """List the table's columns for a row.

    With `during`, as a claim is about to write them; without, as they are.
    """
    written = claimed_columns(mapping, during, utc_now()) if during else {}
    times = {mapping.column(role) for role in ("owner_date", "run_at") if mapping.has(role)}
    return [
        (type_coerce(value, ReadAsUTC) if column in times else value).label(column.key)
        for column, value in ((column, written.get(column, column)) for column in mapping.table.c)
    ]
