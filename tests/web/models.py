"""Queues that a page shows: with everything, with a wide key, with UUIDs, with nothing extra."""

from __future__ import annotations

import enum
import uuid
from typing import Any

from sqlalchemy import Enum, Index, String, Text, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.control import control_tables
from sa_jobqueue.events import history_table
from sa_jobqueue.otel import TraceMixin
from sa_jobqueue.schedules import Schedules
from sa_jobqueue.workflow import Workflow


class Base(DeclarativeBase):
    pass


class Email(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, TraceMixin, Base):
    """A queue with all that a page can show."""

    __tablename__ = "page_email"
    __queue_args__ = {"failed_index": True}  # noqa: RUF012 - as users write it
    __table_args__ = (Index("ix_page_email_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50), default="ann")
    body: Mapped[str | None] = mapped_column(Text)
    draft: Mapped[str | None] = mapped_column(Text, deferred=True)


class Visit(JobMixin, Base):
    """A queue with a wide key of any characters, and two statuses of claimed jobs."""

    __tablename__ = "page_visit"
    __queue_args__ = {"failed_index": True, "during": ["waiting"]}  # noqa: RUF012 - as users write it
    region: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Scan(JobMixin, Base):
    """A queue with UUIDs, and no index of failed jobs."""

    __tablename__ = "page_scan"
    __queue_args__ = {"failed_index": False}  # noqa: RUF012 - as users write it
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True, default=uuid.uuid4)


class Clip(JobMixin, RetryMixin, Base):
    """A clip that is checked, sent away, and published once it is back."""

    __tablename__ = "page_clip"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": "submitted", "claimed": "checking", "done": "published"},
        "ready": ["checked", "rendered"],
        "during": ["sending", "publishing"],
        "failed_index": True,
    }
    __table_args__ = (Index("ix_page_clip_finish", "status", "owner_date"),)
    id: Mapped[int] = mapped_column(primary_key=True)


clips = Workflow(Clip, final=["rejected"])
clips.waiting("at farm", signals=["rendered"])


@clips.step("submitted", during="checking", then="checked", branches=["rejected"])
def check(clip: Clip) -> None: ...


@clips.step("checked", during="sending", then="at farm")
def send(clip: Clip) -> None: ...


@clips.step("rendered", during="publishing", then="published")
def publish(clip: Clip) -> None: ...


class PlainUuid(TypeDecorator[uuid.UUID]):
    """A UUID that the database has as a text without hyphens: a type that tells no Python type."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).hex

    def process_result_value(self, value: Any, dialect: Any) -> uuid.UUID:
        return uuid.UUID(value)


class Stage(enum.Enum):
    """The statuses of tickets; a member is no string."""

    unclaimed = 1
    claimed = 2
    done = 3
    failed = 4
    cancelled = 5


class Ticket(JobMixin.named(status="stage"), Base):  # type: ignore[misc]  # a call
    """A queue whose key and status have types of the user's own."""

    __tablename__ = "page_ticket"
    id: Mapped[uuid.UUID] = mapped_column(PlainUuid(), primary_key=True, default=uuid.uuid4)
    stage: Mapped[Stage] = mapped_column(Enum(Stage, name="page_stage"))


class ApartBase(DeclarativeBase):
    """The base of a queue without control tables, schedules or a history."""


class Plain(JobMixin, ApartBase):
    """The plainest queue."""

    __tablename__ = "page_plain"
    id: Mapped[int] = mapped_column(primary_key=True)


class Absent(JobMixin, ApartBase):
    """A queue whose migration has not run."""

    __tablename__ = "page_absent"
    id: Mapped[int] = mapped_column(primary_key=True)


TABLES = control_tables(Base.metadata, prefix="page")
SCHEDULES = Schedules(Base.metadata, name="page_schedules")
HISTORY = history_table(Base.metadata, "page_history")

emails: JobQueue[Any] = JobQueue(Email, serial_by=Email.recipient)
visits: JobQueue[Any] = JobQueue(Visit)
scans: JobQueue[Any] = JobQueue(Scan)
plain: JobQueue[Any] = JobQueue(Plain)
absent: JobQueue[Any] = JobQueue(Absent)

QUEUES = {"emails": emails, "visits": visits, "scans": scans, "plain": plain}

#: Of a page with several databases.
ELSEWHERE = {
    "emails": emails,
    "check": check,
    "send": send,
    "publish": publish,
    "confirmation_mails_of_orders_from_every_region": scans,
}
