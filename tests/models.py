"""The mapped classes that the tests claim, and factories that fill in the rest."""

from __future__ import annotations

import uuid
from typing import TypeVar

from sqlalchemy import ForeignKey, String, Uuid, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin, ScheduleMixin

T = TypeVar("T")


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))


class Email(JobMixin, Base):
    """The plainest queue: a table with JobMixin."""

    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50))
    subject: Mapped[str | None] = mapped_column(String(50))


class Letter(JobMixin, Base):
    """A queue whose relationship loads eagerly, by an outer join."""

    __tablename__ = "letter"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int | None] = mapped_column(ForeignKey("account.id"))
    copy_to_id: Mapped[int | None] = mapped_column(ForeignKey("account.id"))
    account: Mapped[Account | None] = relationship(lazy="joined", foreign_keys=account_id)
    copy_to: Mapped[Account | None] = relationship(foreign_keys=copy_to_id)


class Task(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A queue with every mixin, and a column that changes with each UPDATE."""

    __tablename__ = "task"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    touched: Mapped[str | None] = mapped_column(String(50), onupdate=func.lower("TOUCHED"))


class Order(
    JobMixin.named(  # type: ignore[misc]  # mypy knows no call as a base class
        status="job_status", owner="job_owner", owner_date="job_owner_date"
    ),
    PriorityMixin.named(priority="job_priority"),  # type: ignore[misc]  # as above
    RetryMixin,
    Base,
):
    """The common case: a domain table with a status, an owner and a priority of its own."""

    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")
    owner: Mapped[int] = mapped_column(default=7)
    priority: Mapped[str] = mapped_column(String(20), default="whatever")


class Message(JobMixin, Base):
    """A queue with its own words, renamed columns and its own order."""

    __tablename__ = "message"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": "unsent", "done": "sent"},
        "order_by": ["sequence desc"],
        "equality": ["channel"],
        "keep": False,
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(String(10), default="sms")
    sequence: Mapped[int]
    status = mapped_column("message_status", String(16))


class Render(JobMixin, RetryMixin, Base):
    """A queue whose claimed jobs the application moves on, with results of its own."""

    __tablename__ = "moved_render"
    __queue_args__ = {"during": ["running"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    result: Mapped[str | None] = mapped_column(String(20))
    frames: Mapped[int | None]


class Pair(JobMixin, PriorityMixin, ScheduleMixin, Base):
    """A queue with a composite key."""

    __tablename__ = "pair"
    left: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    right: Mapped[str] = mapped_column(String(10), primary_key=True)


class Document(JobMixin, Base):
    """A queue with keys that have no order of their own."""

    __tablename__ = "document"
    __queue_args__ = {"order_by": ["created"]}  # noqa: RUF012 - as users write it
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True, default=uuid.uuid4)
    created: Mapped[int]


class Animal(JobMixin, Base):
    """The root of a hierarchy, in one table and in joined ones."""

    __tablename__ = "animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012 - as users write it


class Dog(Animal):
    __tablename__ = "dog"
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(ForeignKey("animal.id"), primary_key=True)
    trick: Mapped[str | None] = mapped_column(String(20))


def add(session: Session, jobs: list[T]) -> list[T]:
    """Commit jobs in this order, and return them."""
    for job in jobs:
        session.add(job)
        session.flush()
    session.commit()
    return jobs


def add_emails(session: Session, *recipients: str) -> list[Email]:
    """Commit an email for each recipient, in this order."""
    return add(session, [Email(recipient=recipient) for recipient in recipients])


def add_tasks(session: Session, *names: str, **columns: object) -> list[Task]:
    """Commit a task for each name, in this order."""
    return add(session, [Task(name=name, **columns) for name in names])


def add_renders(session: Session, count: int) -> list[Render]:
    """Commit so many jobs."""
    return add(session, [Render() for _ in range(count)])


def recipients(emails: object) -> list[str]:
    return [email.recipient for email in emails]  # type: ignore[attr-defined]  # any iterable


def names(tasks: object) -> list[str]:
    return [task.name for task in tasks]  # type: ignore[attr-defined]  # any iterable
