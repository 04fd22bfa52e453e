"""Queues with many kinds of order, and the order of their claims."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import Enum, Float, Index, String, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, ScheduleMixin


class Size(enum.Enum):
    """The order of the members, which is not the alphabetical order."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Base(DeclarativeBase):
    pass


class Ticket(JobMixin, Base):
    """A queue with its own order, by columns that may be NULL."""

    __tablename__ = "ticket"
    __queue_args__ = {"order_by": ["weight desc", "size", "owner_name"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[float | None] = mapped_column(Float(24))
    size: Mapped[Size | None] = mapped_column(Enum(Size))
    owner_name: Mapped[str | None] = mapped_column(String(20))


class Print(JobMixin, PriorityMixin, ScheduleMixin, Base):
    """A queue with an index that finds its finishes on every database."""

    __tablename__ = "print"
    __table_args__ = (Index("ix_print_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)


def claimed_in_order(session: Session, queue: JobQueue[Any]) -> list[Any]:
    """Return the keys of all jobs in the order in which claims take them; roll the claims back."""
    claimed = queue.claim(session, owner="oracle", limit=1_000)
    keys = [key_of(job) for job in claimed]
    session.rollback()
    return keys


def key_of(job: Any) -> Any:
    return inspect(job).identity
