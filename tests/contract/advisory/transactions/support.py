"""A table whose constraint fails at the commit."""

from __future__ import annotations

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class SeatBase(DeclarativeBase):
    pass


class Seat(SeatBase):
    """A class with a constraint that is checked at COMMIT."""

    __tablename__ = "seat"
    __table_args__ = (UniqueConstraint("guest", deferrable=True, initially="DEFERRED"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    guest: Mapped[int]
