"""Parts, and reports that wait for them."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import String, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, RetryMixin, RoundMixin, claim
from sa_jobqueue.groups import (
    Group,
    GroupMixin,
    GroupProgress,
    WaitingMixin,
    after,
    group_progress,
)
from sa_jobqueue.tasks import TaskMixin, TaskQueue
from sa_jobqueue.workflow import Workflow


class Base(DeclarativeBase):
    pass


class Part(GroupMixin, RetryMixin, JobMixin, Base):
    __tablename__ = "groups_part"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), default="")


class Picture(
    GroupMixin.named(group_id="batch"),  # type: ignore[misc]  # mypy knows no call as a base class
    JobMixin.named(status="state"),  # type: ignore[misc]  # as above
    Base,
):
    """A member with names and words of its own, a composite key, and rows that are deleted."""

    __tablename__ = "groups_picture"
    __queue_args__ = {"names": {"done": "drawn"}, "keep": False}  # noqa: RUF012
    page: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[str] = mapped_column(String(10), primary_key=True)


class Report(WaitingMixin, GroupMixin, RetryMixin, JobMixin, Base):
    """It waits, and is a member itself."""

    __tablename__ = "groups_report"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), default="")


class Letter(WaitingMixin, JobMixin, Base):
    """It waits under a word and a key of its own."""

    __tablename__ = "groups_letter"
    __queue_args__ = {"waiting": "on hold"}  # noqa: RUF012 - as users write it
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True, default=uuid.uuid4)


class Film(GroupMixin, RoundMixin, JobMixin, Base):
    __tablename__ = "groups_film"
    id: Mapped[int] = mapped_column(primary_key=True)


class Clip(GroupMixin, JobMixin, Base):
    """A member that goes through a workflow."""

    __tablename__ = "groups_clip"
    id: Mapped[int] = mapped_column(primary_key=True)


workflow = Workflow(Clip)
workflow.waiting("review", signals=["done", "unclaimed"])


@workflow.step("unclaimed", during="claimed", then="review")
def cut(clip: Clip) -> None: ...


class Run(Base):
    """A call of a handler, committed with the finish of its job."""

    __tablename__ = "groups_run"
    id: Mapped[int] = mapped_column(primary_key=True)
    report_id: Mapped[int]
    unfinished: Mapped[int]


class Task(WaitingMixin, GroupMixin, TaskMixin, Base):
    __tablename__ = "groups_task"
    id: Mapped[int] = mapped_column(primary_key=True)


tasks = TaskQueue(Task)


@tasks.task
def draw(page: int) -> int:
    return page


@tasks.task
def bind(pages: int) -> str:
    return f"{pages} pages"


def grouped(
    session: Session, number: int, *, then: Any = None, **options: Any
) -> tuple[Group, list[Part], Any]:
    """Commit a group of parts, and what waits for them."""
    parts, waits = [Part() for _ in range(number)], then or Report()
    group = after(session, parts, then=waits, **options)
    session.commit()
    return group, parts, waits


def claimed(session: Session, limit: int = 1, entity: Any = Part) -> Any:
    """Commit a claim."""
    jobs = claim(session, entity, owner="w", limit=limit)
    session.commit()
    return jobs


def progress(session: Session, group: Group) -> tuple[int, int, int]:
    found: GroupProgress = group_progress(session, group)
    return found.unfinished, found.failed, found.done
