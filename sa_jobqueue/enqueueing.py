"""enqueue(): bulk inserts of unclaimed jobs, in every style of mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import insert, select

from .clock import as_utc, utc_now
from .errors import ArgumentError
from .mapping import QueueMapping, mapping_of
from .sessions import AnySession, writing

#: Rows per statement: memory stays bounded for a generator of any length.
CHUNK = 1_000


def enqueue(
    session: AnySession,
    entity: type[Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    priority: int | None = None,
    run_at: datetime | None = None,
) -> int:
    """Insert unclaimed jobs in the caller's transaction; return how many.

    ``session.add(Email(..))`` makes a job as well. This sets priority and time
    also for dataclasses and SQLModel, whose constructors do not know the
    mixins' columns.

    Args:
        session: the caller's; nothing is committed.
        entity: a mapped class with JobMixin.
        rows: attribute names with values, one mapping a row; a generator is
            inserted in chunks.
        priority: for the rows that do not say their own.
        run_at: aware; not claimed before that time.

    Raises:
        ArgumentError: `priority` or `run_at` without the mixin, a naive time, or
            a name that is no column of the class.
    """
    mapping = mapping_of(entity)
    common = _common(mapping, priority=priority, run_at=run_at)
    inserted = 0
    with writing(session, mapping) as writer:
        if mapping.has("run_at"):
            # Bound once: first in, first out within the batch, and drivers join
            # rows without SQL functions into one statement.
            now = as_utc(writer.core(select(utc_now())).scalar_one())
            common.setdefault(mapping.attributes["run_at"], now)
        for chunk in _chunks({**common, **row} for row in rows):
            writer.orm(insert(entity), [_checked(mapping, row) for row in chunk])
            inserted += len(chunk)
    return inserted


def _common(mapping: QueueMapping, **given: Any) -> dict[str, Any]:
    mixins = {"priority": "PriorityMixin", "run_at": "ScheduleMixin"}
    for role, value in given.items():
        if value is not None and not mapping.has(role):
            raise ArgumentError(f"{mapping} has no {role}: add {mixins[role]}")
    return {mapping.attributes[role]: value for role, value in given.items() if value is not None}


def _checked(mapping: QueueMapping, row: dict[str, Any]) -> dict[str, Any]:
    unknown = row.keys() - mapping.mapper.columns.keys()
    if unknown:
        raise ArgumentError(f"{mapping} has no column {', '.join(sorted(unknown))}")
    for key in mapping.time_keys:
        value = row.get(key)
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ArgumentError(f"{key}={value!r} has no time zone; use an aware datetime")
            row[key] = as_utc(value)
    return row


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
