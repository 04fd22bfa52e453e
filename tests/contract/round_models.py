"""The mapped classes of the tests of rounds, and what fills and reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, String, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
    claim,
    complete,
)
from tests.support import with_empty_tables


class RoundBase(DeclarativeBase):
    pass


class Subscriber(JobMixin, RoundMixin, RetryMixin, RoundBase):
    """Somebody who gets each mailing, one of each kind at a time where a queue says so."""

    __tablename__ = "round_subscriber"
    __queue_args__ = {"per_key": ["kind"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int] = mapped_column(default=1)


class Device(JobMixin, RoundMixin, PriorityMixin, ScheduleMixin, RoundBase):
    """Something that is asked in rounds, with every mixin that makes an order."""

    __tablename__ = "round_device"
    id: Mapped[int] = mapped_column(primary_key=True)


class Member(
    JobMixin.named(status="job_status", owner="job_owner"),  # type: ignore[misc]  # a call
    RoundMixin.named(round="mailing"),  # type: ignore[misc]  # a call
    RoundBase,
):
    """A class with its own names and words, and a key of two columns."""

    __tablename__ = "round_member"
    __queue_args__ = {"names": {"unclaimed": "unsent", "done": "sent"}}  # noqa: RUF012 - as users write it
    club: Mapped[str] = mapped_column(String(10), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Sheet(JobMixin, RoundMixin, RoundBase):
    """Two steps, each with statuses of its own."""

    __tablename__ = "round_sheet"
    __queue_args__ = {"ready": ["printed"], "during": ["folding"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


class Pet(JobMixin, RoundMixin, RoundBase):
    """A hierarchy in one table."""

    __tablename__ = "round_pet"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "pet"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))


class Cat(Pet):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012 - as users write it


class Reader(RoundMixin, RoundBase):
    """A class with RoundMixin only: no status, no owner."""

    __tablename__ = "round_reader"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int] = mapped_column(default=1)


def emptied(engine: Engine) -> Engine:
    """Return the engine with empty tables of this module."""
    return with_empty_tables(engine, RoundBase.metadata)


def add(session: Session, entity: Any, number: int, **columns: Any) -> None:
    """Commit rows with the ids from 1 on."""
    session.execute(insert(entity), [{"id": id_, **columns} for id_ in range(1, number + 1)])
    session.commit()


def finish_all(session: Session, entity: Any, **options: Any) -> list[Any]:
    """Claim and complete until nothing is left; return the keys in the order claimed."""
    return list(_finished(session, entity, options))


def _finished(session: Session, entity: Any, options: dict[str, Any]) -> Iterator[Any]:
    while claimed := claim(session, entity, owner="w", limit=100, **options):
        complete(session, claimed)
        session.commit()
        yield from (job.id for job in claimed)
    session.commit()  # even an empty claim keeps SQLite's write lock


def state(session: Session, entity: Any = Subscriber) -> dict[int, tuple[str, int]]:
    """Read status and round of each row, as they are in the database."""
    found = select(entity.id, entity.status, entity.round).order_by(entity.id)
    return {id_: (status, round_) for id_, status, round_ in session.execute(found)}
