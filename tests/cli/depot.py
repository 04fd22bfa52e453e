"""A user's own module: queues with control tables and schedules, and keys of several kinds."""

from __future__ import annotations

from sqlalchemy import Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

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


class Number(TypeDecorator[int]):
    """A number; nobody can ask this type for its type of Python."""

    impl = Integer
    cache_ok = True


class Box(JobMixin, Base):
    """A job with a key of a type of the user's own."""

    __tablename__ = "depot_box"

    id: Mapped[int] = mapped_column(Number, primary_key=True)


crates = JobQueue(Crate)
barrels = JobQueue(Crate, Crate.kind == "barrel")
shelves = JobQueue(Shelf)
TABLES = control_tables(Base.metadata, prefix="depot")
SCHEDULES = Schedules(Base.metadata, name="depot_schedules")
