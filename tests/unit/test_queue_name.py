"""The names of queues.

A rule that the commands, the page and the schedules share, so the inner module is imported.
"""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue
from sa_jobqueue.model.queue_name import mapping_of_queue, queue_name


class Base(DeclarativeBase):
    """The base of the test's class."""


class Call(JobMixin, Base):
    """A job whose columns have the names of a JobQueue's attributes."""

    __tablename__ = "call"
    id: Mapped[int] = mapped_column(primary_key=True)
    queue: Mapped[str]
    mapping: Mapped[str]
    ready: Mapped[bool]


def test_a_class_is_a_queue_whatever_its_columns_are_called() -> None:
    named = queue_name(Call)

    assert named == queue_name(JobQueue(Call)) == "call"
    assert mapping_of_queue(Call).entity is Call
