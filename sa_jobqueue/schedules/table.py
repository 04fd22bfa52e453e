"""The rows of schedules: a queue of the library, in the user's metadata.

A row is claimed and released in one transaction, so others see it unclaimed, or paused. ``run_at``
is when a scheduler looks at it, as a rule at ``next_tick``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Integer, MetaData, String, Text
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from ..errors import ArgumentError
from ..model.columns import timestamp_type
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
    schema = schema or metadata.schema
    if (name if schema is None else f"{schema}.{name}") in metadata.tables:
        raise ArgumentError(f"the metadata has a table {name!r}: give Schedules another name=")
    body = {"__tablename__": name, "__table_args__": {"schema": schema}}
    base: Any = declarative_base(metadata=metadata)
    found: type[Schedule] = type("JobSchedule", (Schedule, base), body)
    return found
