"""A user's own module: a queue with control tables and schedules."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.control import control_tables
from sa_jobqueue.schedules import Schedules


class Base(DeclarativeBase):
    """The base of the tables."""


class Letter(JobMixin, Base):
    """A job."""

    __tablename__ = "letter"
    id: Mapped[int] = mapped_column(primary_key=True)


TABLES = control_tables(Base.metadata)

SCHEDULES = Schedules(Base.metadata)
