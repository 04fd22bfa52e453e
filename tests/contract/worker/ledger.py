"""A queue whose handlers write a ledger: one row for each job that was handled."""

from __future__ import annotations

from sqlalchemy import Engine, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, RetryMixin, ScheduleMixin


class Base(DeclarativeBase):
    pass


class Invoice(JobMixin, ScheduleMixin, RetryMixin, Base):
    __tablename__ = "ledger_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    total: Mapped[int] = mapped_column(default=0)


class Entry(Base):
    __tablename__ = "ledger_entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


def entries(engine: Engine) -> list[str]:
    """Return the names in the ledger, in their order."""
    with engine.connect() as connection:
        return list(connection.scalars(select(Entry.name).order_by(Entry.name)))
