"""The outbox: messages to a broker, committed together with the changes that they tell of.

with Session(engine) as session, session.begin():
    order = session.get_one(Order, 7, with_for_update=True)
    order.status = "paid"
    session.add(Message(key=f"order.{order.id}", body="paid"))
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ExponentialBackoff, JobMixin, JobQueue, RetryMixin


class Base(DeclarativeBase):
    """The application's tables."""


class Message(JobMixin, RetryMixin, Base):
    """A message; those with the same key are published in order."""

    __tablename__ = "outbox"
    __queue_args__: ClassVar[dict[str, Any]] = {
        "per_key": ["key"],  # an index for serial_by
        "max_attempts": None,  # a message that failed for good would be overtaken
        "keep": False,  # a published message is deleted
    }
    # The id is the message's name, so a later message must never get that of a deleted one.
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(100))
    body: Mapped[str] = mapped_column(String(1000))


def outbox() -> JobQueue[Message]:
    """Make the queue, which one of the publishers beside this module takes its messages from."""
    backoff = ExponentialBackoff(longest=timedelta(seconds=10))
    return JobQueue(Message, serial_by=Message.key, backoff=backoff)
