"""Queues whose jobs are inserted by schedules."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, ScheduleMixin
from sa_jobqueue.dialects.clock import as_utc
from sa_jobqueue.schedules import Schedules


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


class Elsewhere(DeclarativeBase):
    """The base of queues that are in no database."""


class LongNamed(JobMixin, Elsewhere):
    """A queue whose schema and table have a long name."""

    __tablename__ = "t" * 100
    __table_args__ = ({"schema": "s" * 60},)
    id: Mapped[int] = mapped_column(primary_key=True)


SCHEDULES = Schedules(Base.metadata, name="report_schedules")


def reports() -> JobQueue[Report]:
    """Make a queue that declares nothing yet."""
    return JobQueue(Report)


def ticks_of(session: Session, title: str = "r") -> list[datetime]:
    """Return the ticks of the reports that were inserted."""
    found = session.query(Report.run_at).filter(Report.title == title).order_by(Report.run_at)
    return [as_utc(run_at) for (run_at,) in found]
