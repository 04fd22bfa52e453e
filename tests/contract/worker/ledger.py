"""A queue whose handlers write a ledger: one row for each job that was handled."""

from __future__ import annotations

from sqlalchemy import String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

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


def add_invoices(session: Session, *names: str, max_attempts: int | None = None) -> None:
    session.add_all(Invoice(name=name, max_attempts=max_attempts) for name in names)
    session.commit()


def entries(session: Session) -> list[str]:
    session.rollback()
    return list(session.scalars(select(Entry.name).order_by(Entry.name)))


def statuses(session: Session) -> dict[str, str]:
    session.rollback()
    found = session.execute(select(Invoice.name, Invoice.status))
    return {row.name: row.status for row in found}
