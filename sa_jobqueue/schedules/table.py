"""The rows of schedules: a queue of the library, in the user's metadata; the values of their jobs.

A row is claimed and released in one transaction, so others see it unclaimed, or paused. ``run_at``
is when a scheduler looks at it, as a rule at ``next_tick``.

The values are JSON, which has no dates, times, decimal numbers or UUIDs. They are written as text,
which is converted to the column's own type when the job is inserted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, Enum, Integer, Interval, MetaData, String, Text, TypeDecorator
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from ..errors import ArgumentError
from ..model.columns import FROM_TEXT, timestamp_type
from ..model.keys import table_in
from ..model.mapping import QueueMapping
from ..model.mixins import JobMixin, ScheduleMixin

#: The longest name of a queue: its table's schema and name, and a status.
QUEUE_LENGTH = 150

NAME_LENGTH = 100
CRON_LENGTH = 200
ZONE_LENGTH = 64

#: The word for a schedule that is paused: no claim takes it.
PAUSED = "paused"


class Schedule(JobMixin, ScheduleMixin):
    """A schedule.

    Attributes:
        queue: the name of the queue that its jobs are inserted into.
        values_json: the jobs' attributes, as JSON.
        missed: what becomes of missed ticks, a word of Missed.
        revision: of the declaration in the code; None: it was made at run time.
        next_tick: the next tick.
        last_tick: the last tick that became a job.
        skipped_from: the first tick of the last gap, in which ticks made no job.
        skipped_to: the end of the last gap.
        last_error: why the job of `next_tick` could not be inserted; None: nothing failed.
    """

    __queue_args__: ClassVar[dict[str, Any]] = {"names": {"cancelled": PAUSED}}

    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    queue: Mapped[str] = mapped_column(String(QUEUE_LENGTH))
    cron: Mapped[str] = mapped_column(String(CRON_LENGTH))
    timezone: Mapped[str] = mapped_column(String(ZONE_LENGTH))
    values_json: Mapped[str] = mapped_column(Text)
    missed: Mapped[str] = mapped_column(String(8))
    revision: Mapped[int | None] = mapped_column(Integer)
    next_tick: Mapped[datetime] = mapped_column(timestamp_type())
    last_tick: Mapped[datetime | None] = mapped_column(timestamp_type())
    skipped_from: Mapped[datetime | None] = mapped_column(timestamp_type())
    skipped_to: Mapped[datetime | None] = mapped_column(timestamp_type())
    last_error: Mapped[str | None] = mapped_column(Text)


def schedule_class(metadata: MetaData, name: str, schema: str | None) -> type[Schedule]:
    """Map the rows of schedules to a table in a MetaData.

    Raises:
        ArgumentError: the metadata has a table of this name.
    """
    if table_in(metadata, name, schema) is not None:
        raise ArgumentError(f"the metadata has a table {name!r}: give Schedules another name=")
    body = {"__tablename__": name, "__table_args__": {"schema": schema or metadata.schema}}
    base: Any = declarative_base(metadata=metadata)
    found: type[Schedule] = type("JobSchedule", (Schedule, base), body)
    return found


#: What an INSERT by enqueue() or a claim writes: other values would make no job that is claimed.
_OURS = ("status", "owner", "owner_date")


def values_json(mapping: QueueMapping, values: Mapping[str, Any]) -> str:
    """Return the values of a job as JSON.

    Raises:
        ArgumentError: the values are no attributes of the class, no JSON, or not of the type
            of their columns.
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"values= maps attributes of {mapping} to their values, as in {{'kind': 'digest'}}, "
            f"and is not {values!r}"
        )
    for name in (mapping.attributes.get(role) for role in _OURS):
        if name is not None and name in values:
            raise ArgumentError(
                f"values= has {name!r}, which the queue writes: a job has the status that its "
                "queue claims from, and no owner"
            )
    try:
        text = json.dumps(dict(values), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the values of a schedule are JSON, with dates as ISO text: {error}"
        ) from error
    job_values(mapping, text)
    return text


def job_values(mapping: QueueMapping, text: str) -> dict[str, Any]:
    """Return the attributes of a job, each as its column takes it.

    Raises:
        ArgumentError: the class has no such column, or a column does not take its value.
    """
    values: dict[str, Any] = json.loads(text)
    unknown = sorted(values.keys() - set(mapping.mapper.columns.keys()))
    if unknown:
        raise ArgumentError(
            f"{mapping} has no column {', '.join(unknown)}: values= takes the attributes of its "
            "columns"
        )
    return {name: _value(mapping, name, value) for name, value in values.items()}


def _value(mapping: QueueMapping, name: str, value: Any) -> Any:
    kind = mapping.mapper.columns[name].type
    if value is None or isinstance(kind, Enum | JSON):
        return value
    try:
        wanted = kind.python_type
    except NotImplementedError:
        return value
    found: Any
    try:
        found = FROM_TEXT[wanted](str(value)) if wanted in FROM_TEXT else value
    except (ValueError, ArithmeticError):
        found = None
    fits = isinstance(found, (float, int) if wanted is float else wanted)
    takes_any = isinstance(kind, TypeDecorator) and not isinstance(kind, Interval)
    if not fits and (found is None or not takes_any):
        raise ArgumentError(
            f"{mapping}.{name} takes values of the type {wanted.__name__}, not {value!r}: write "
            "dates and times in ISO 8601, and numbers with decimal places and UUIDs as text. A "
            "column of a type that JSON and text cannot have gets its value by a default"
        )
    if name in mapping.time_keys and found.tzinfo is None:
        raise ArgumentError(f"{name}={value!r} has no time zone; write it as in {value}+00:00")
    return found
