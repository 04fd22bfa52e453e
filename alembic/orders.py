"""The orders of a shop, in a table that is older than its queue."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import Numeric, String

from sa_jobqueue import JobMixin, PriorityMixin


class Base(DeclarativeBase):
    """The base of the shop's tables."""


class Order(JobMixin.named(status="job_status"), PriorityMixin, Base):  # type: ignore[misc]  # a call
    """An order; its column status is not the status of the queue."""

    __tablename__ = "example_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(100))
    amount: Mapped[float] = mapped_column(Numeric(10, 2))
    status: Mapped[str] = mapped_column(String(20))
