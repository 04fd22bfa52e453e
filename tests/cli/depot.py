"""A user's own module: queues with control tables and schedules."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin
from sa_jobqueue.control import control_tables
from sa_jobqueue.schedules import Schedules


class Base(DeclarativeBase):
    """The base of the depot's tables."""


class Crate(JobMixin, PriorityMixin, RetryMixin, Base):
    """A job with all that a command can change."""

    __tablename__ = "crate"
    __queue_args__ = {"failed_index": True}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), default="box")


class Shelf(JobMixin, Base):
    """A job with a key of two columns, and no index of failed jobs."""

    __tablename__ = "shelf"
    __queue_args__ = {"failed_index": False}  # noqa: RUF012 - as users write it

    hall: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


crates = JobQueue(Crate)
barrels = JobQueue(Crate, Crate.kind == "barrel")
shelves = JobQueue(Shelf)
a_queue_with_quite_a_long_name = crates
TABLES = control_tables(Base.metadata, prefix="depot")
SCHEDULES = Schedules(Base.metadata, name="depot_schedules")
