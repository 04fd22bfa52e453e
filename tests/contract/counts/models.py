"""Queues with an index of failed jobs, with and without a schedule, and one with no such index."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Float, Index, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.control import control_tables

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Listed, ListedJob, list_jobs
from sa_jobqueue.migration import clock_default, timestamp_type


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A queue with all that can be counted."""

    __tablename__ = "sent_parcel"
    __queue_args__ = {"failed_index": True}  # noqa: RUF012 - as users write it
    __table_args__ = (Index("ix_sent_parcel_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), default="box")


class Postcard(JobMixin, Base):
    """A queue that knows when its rows were inserted, with an index of its done rows only."""

    __tablename__ = "postcard"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "failed_index": True,
        "enqueued_at": "written",
        "names": {"failed": "lost"},
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    written: Mapped[datetime] = mapped_column(timestamp_type(), server_default=clock_default())


done = text("status = 'done'")
dates = Postcard.__table__.c.owner_date
Index("ix_postcard_done", dates, postgresql_where=done, sqlite_where=done)


class Pigeon(JobMixin, Base):
    """The plainest queue, with a composite key and no index of failed jobs or finishes."""

    __tablename__ = "pigeon"
    __queue_args__ = {"failed_index": False}  # noqa: RUF012 - as users write it
    __table_args__ = (Index("ix_pigeon_status", "status", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    wing: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Hall(Enum):
    """A part of a key, of which the database has the names, in no alphabetical order."""

    WEST = 1
    EAST = 2


class ShelfMark(TypeDecorator[int]):
    """A number that the database has as a text."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return f"no. {int(value):03}"

    def process_result_value(self, value: Any, dialect: Any) -> int:
        return int(value.removeprefix("no. "))


class Crate(JobMixin, RetryMixin, Base):
    """A queue whose key has an enum, and a type of the user's own."""

    __tablename__ = "stored_crate"
    __queue_args__ = {"failed_index": True}  # noqa: RUF012 - as users write it
    hall: Mapped[Hall] = mapped_column(primary_key=True)
    mark: Mapped[int] = mapped_column(ShelfMark, primary_key=True)


class Ticket(JobMixin, Base):
    """A queue with its own order, by columns that may be NULL."""

    __tablename__ = "ticket"
    __queue_args__ = {"order_by": ["weight desc", "hall", "seat"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[float | None] = mapped_column(Float(24))
    hall: Mapped[Hall | None]
    seat: Mapped[str | None] = mapped_column(String(20))


TABLES = control_tables(Base.metadata, prefix="post")

parcels: JobQueue[Any] = JobQueue(Parcel)
boxes: JobQueue[Any] = JobQueue(Parcel, Parcel.kind == "box")


def add(session: Session, *jobs: Any) -> None:
    session.add_all(jobs)
    session.commit()


def keys_in_claim_order(session: Session, queue: JobQueue[Any]) -> list[tuple[Any, ...]]:
    """Return the keys of all due jobs as claims would take them; roll the claim back."""
    session.commit()  # on InnoDB, a strict claim begins its transaction
    names = [key.key for key in queue.mapping.key_attributes]
    claimed = queue.claim(session, owner="oracle", limit=1_000)
    keys = [tuple(getattr(job, name) for name in names) for job in claimed]
    session.rollback()
    return keys


def pages(session: Session, queue: Any, which: Listed, limit: int = 4) -> list[list[ListedJob]]:
    """Read page after page, until one is empty."""
    found: list[list[ListedJob]] = []
    while True:
        after = found[-1][-1] if found else None
        page = list_jobs(session, queue, which, limit=limit, after=after)
        if not page:
            return found
        found.append(page)


def keys(found: list[list[ListedJob]]) -> list[Any]:
    return [job.key for page in found for job in page]
