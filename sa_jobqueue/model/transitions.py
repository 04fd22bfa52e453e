"""What a row becomes when a new round takes it, at once or when its claim ends.

A row that is claimed while a round is started keeps its status, its owner and its fence:
only ``round`` is written, to the number of the new round with a minus sign. Whatever
ends the claim, a finish or a reaper, then leaves the row unclaimed in that round::

    status     round             status     round             status     round
    claimed    6      start 7    claimed    -7     complete   unclaimed  7

Below zero a row is never claimed anew: only claimed rows are there. Of a class without
JobMixin there are no claimed rows; there -7 says that round 7 is done with the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, Null, case, func, literal_column, null

from .mapping import QueueMapping
from .plain_rows import word_literal
from .status import UNCLAIMED


def as_new(mapping: QueueMapping) -> dict[Column[Any], ColumnElement[Any]]:
    """Return what a job of a new round has: the columns with their values, the status last."""
    new: dict[Column[Any], ColumnElement[Any]] = {
        mapping.column("owner"): null(),
        mapping.column("owner_date"): null(),
    }
    if mapping.has("attempts"):
        new[mapping.column("attempts")] = literal_column("0")
        new[mapping.column("last_error")] = null()
    return {**new, mapping.column("status"): word_literal(mapping.word(UNCLAIMED))}


def joins_round(mapping: QueueMapping) -> ColumnElement[bool] | None:
    """Return the criterion that a newer round waits for a claimed row; None: there are none."""
    return mapping.column("round") < 0 if mapping.has("round") else None


def or_join(
    mapping: QueueMapping, values: Mapping[Column[Any], Any]
) -> Mapping[Column[Any], ColumnElement[Any]]:
    """Have a claim end with these values, or in the round that waits for its row.

    The round comes last: MySQL's assignments see what those before them wrote.
    """
    joins = joins_round(mapping)
    if joins is None or mapping.column("status") not in values:
        return values
    new = as_new(mapping)
    ending: dict[Column[Any], Any] = {
        column: _either(joins, new.get(column, column), value) for column, value in values.items()
    }
    for column, value in new.items():
        ending.setdefault(column, case((joins, value), else_=column))
    ending[mapping.column("round")] = func.abs(mapping.column("round"))
    return ending


def _either(joins: ColumnElement[bool], new: Any, value: Any) -> Any:
    # A CASE of nothing but NULL is text to PostgreSQL, which is no time.
    return (
        value
        if isinstance(new, Null) and isinstance(value, Null)
        else case((joins, new), else_=value)
    )
