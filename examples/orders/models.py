"""Orders: a table of the shop, which is also the queue of its confirmations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ConstantBackoff, JobMixin, JobQueue, RetryMixin


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(JobMixin, RetryMixin, Base):
    """An order, which is confirmed by e-mail."""

    __tablename__ = "shop_order"
    __queue_args__: ClassVar[dict[str, Any]] = {
        "per_key": ["customer"],  # an index for serial_by
        "failed_index": True,
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(100))
    item: Mapped[str] = mapped_column(String(100))


#: Claims one order of each customer at a time, the oldest order first.
confirmations = JobQueue(
    Order, serial_by=Order.customer, backoff=ConstantBackoff(timedelta(seconds=0.3))
)
