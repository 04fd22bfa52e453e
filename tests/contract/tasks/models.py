"""A table of tasks, and functions of a shop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.schedules import Schedules
from sa_jobqueue.tasks import TaskMixin, TaskQueue
from sa_jobqueue.worker import Cancel, Release, Retry


class Base(DeclarativeBase):
    pass


class Task(TaskMixin, Base):
    __tablename__ = "shop_task"
    id: Mapped[int] = mapped_column(primary_key=True)


class Sent(Base):
    """What a transactional task has written."""

    __tablename__ = "shop_sent"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str] = mapped_column(String(50))


SCHEDULES = Schedules(Base.metadata)

tasks = TaskQueue(Task)


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Parcel:
    weight: Decimal
    size: Size


class Address(BaseModel):
    street: str
    since: date | None = None


@tasks.task(max_attempts=5)
def send_invoice(order_id: int, *, copy: bool = False) -> str:
    return f"invoice {order_id}{' with a copy' if copy else ''}"


#: Of every type that travels, a value.
OF_EVERY_TYPE: dict[str, Any] = {
    "when": datetime(2026, 1, 31, 7, 0, 0, 123456, tzinfo=UTC),
    "for_": timedelta(minutes=5),
    "number": UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "price": Decimal("1.10"),
    "size": Size.LARGE,
    "parcel": Parcel(Decimal("0.5"), Size.SMALL),
    "address": Address(street="Main", since=date(2020, 2, 29)),
    "raw": b"\xff\x00",
    "tags": {"a", "b"},
    "pair": (1, "x"),
    "anything": {"a": [1, None, True]},
    "none": None,
}


@tasks.task
def echo(
    when: datetime,
    for_: timedelta,
    number: UUID,
    price: Decimal,
    size: Size,
    parcel: Parcel,
    address: Address,
    raw: bytes,
    tags: set[str],
    pair: tuple[int, str],
    anything: Any,
    none: str | None,
) -> bool:
    given = dict(locals())
    return given == OF_EVERY_TYPE


@tasks.task
def pack(first: int, /, *others: int, **weights: Decimal) -> Parcel:
    assert (first, others, weights) == (1, (2, 3), {"a": Decimal("0.1")})
    return Parcel(weights["a"], Size.LARGE)


@tasks.task
def names(self: int, session: int) -> None: ...


@tasks.task(transactional=True)
def send_once(session: Session, address: str) -> int:
    session.execute(insert(Sent).values(address=address))
    if address == "nowhere":
        raise LookupError(address)
    return len(address)


@tasks.task(hide=["token"], max_attempts=1)
def log_in(user: str, token: str) -> None:
    raise PermissionError(user)


@tasks.task
def decide(how: str) -> str:
    outcomes: dict[str, Any] = {
        "retry": Retry(timedelta(hours=1)),
        "cancel": Cancel("no longer needed"),
        "release": Release(datetime(2030, 1, 1, tzinfo=UTC)),
    }
    outcome: str = outcomes[how]
    return outcome


@tasks.every("30 2 * * *", timezone="Europe/Berlin")
@tasks.task
def clean_up(keep: int = 7) -> None: ...


awaited = TaskQueue(Task)


@awaited.task
async def fetch(page: int) -> str:
    return f"page {page}"


@awaited.task(transactional=True)
async def send_awaiting(session: Any, address: str) -> int:
    await session.execute(insert(Sent).values(address=address))
    return len(address)
