"""Queues whose jobs are inserted by schedules."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Numeric, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, ScheduleMixin
from sa_jobqueue.schedules import Schedules

# Inner: no test waits until the garbage collector has found a queue.
from sa_jobqueue.schedules.declared import _declarations


class Base(DeclarativeBase):
    """The base of the queues with schedules."""


class Report(JobMixin, ScheduleMixin, Base):
    """A job that knows its tick."""

    __tablename__ = "scheduled_report"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(20))


class Plain(JobMixin, Base):
    """A job without a time; one of each title."""

    __tablename__ = "scheduled_plain"
    __table_args__ = (UniqueConstraint("title"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(20))


class Kind(Enum):
    """The kind of a letter."""

    BILL = "b"
    OFFER = "o"


class Typed(JobMixin, ScheduleMixin, Base):
    """A job with values that JSON does not have."""

    __tablename__ = "scheduled_typed"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str | None] = mapped_column(String(20))
    count: Mapped[int | None]
    share: Mapped[float | None]
    urgent: Mapped[bool | None]
    at: Mapped[datetime | None]
    day: Mapped[date | None]
    hour: Mapped[time | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    key: Mapped[UUID | None]
    kind: Mapped[Kind | None]
    more: Mapped[dict[str, int] | None] = mapped_column(JSON)
    takes: Mapped[timedelta | None]


class Elsewhere(DeclarativeBase):
    """The base of queues that are in no database."""


class Renamed(JobMixin.named(status="job_state", owner="worker"), Elsewhere):  # type: ignore[misc]  # a call
    """A queue with a column of its own that is called owner."""

    __tablename__ = "renamed"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]


SCHEDULES = Schedules(Base.metadata, name="report_schedules")


def reports() -> JobQueue[Report]:
    """Make a queue that declares nothing yet."""
    return JobQueue(Report)


def forget(*queues: JobQueue[Any]) -> None:
    """End the processes of these queues, or of all here: what they declare ends with them."""
    for queue in queues or [it for it in _declarations if it.entity.__module__ == __name__]:
        _declarations.pop(queue, None)


def ticks_of(session: Session, title: str = "r") -> list[datetime]:
    """Return the ticks of the reports that were inserted."""
    found = session.query(Report.run_at).filter(Report.title == title).order_by(Report.run_at)
    return [in_utc(run_at) for (run_at,) in found]


def in_utc(moment: datetime) -> datetime:
    """Attach UTC to a time of a database whose times have no time zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
