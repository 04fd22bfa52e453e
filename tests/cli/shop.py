"""A user's own module with two queues and their handlers."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin
from sa_jobqueue.worker import Cancel, Outcome

NOT_A_QUEUE = 7

#: Why a job fails.
NO = "no"


class Base(DeclarativeBase):
    """The base of the shop's tables."""


class Message(JobMixin, RetryMixin, Base):
    """A message, in a table with its own word for done."""

    __tablename__ = "message"
    __queue_args__ = {"names": {"done": "sent"}}  # noqa: RUF012 (as users write it)

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str]


class Order(JobMixin, Base):
    """A job with a key of two columns that is tried once."""

    __tablename__ = "order"

    shop: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


to_a = JobQueue(Message, Message.recipient.like("a%"))


def send(message: Message) -> None:
    """Do nothing, and succeed."""


def send_slowly(message: Message) -> None:
    """Take longer than a test's minute."""
    time.sleep(0.5)


async def send_awaited(message: Message) -> None:
    """The same in an event loop."""
    await asyncio.sleep(0.5)


def refuse(job: object) -> None:
    """Fail."""
    raise ValueError(NO)


def tell_and_refuse(message: Message) -> None:
    """Log what is hard to write as JSON, and fail."""
    extra = {"stock": {(1, 2): 3}, "shelf": object, "time": "noon", "level": 3}
    logging.getLogger("shop").warning("counted", extra=extra, stack_info=True)
    refuse(message)


def drop(message: Message) -> Outcome:
    """Cancel."""
    return Cancel("not wanted")


def leave(message: Message) -> None:
    """End the process as if all was well."""
    raise SystemExit(0)


async def leave_awaited(message: Message) -> None:
    """The same in an event loop."""
    raise SystemExit(0)
