"""Functions are enqueued with their arguments, in the transaction that they belong to.

    python examples/14_tasks.py
    python examples/14_tasks.py --url postgresql+psycopg2://user@host/database

An order is placed, and its invoice is enqueued in the same transaction. Another order is rolled
back, and its invoice with it. A worker calls the functions and keeps what they return. The stock
is counted in the transaction of the finish, so each parcel is counted once.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
from decimal import Decimal

from sqlalchemy import create_engine, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.tasks import TaskMixin, TaskQueue
from sa_jobqueue.worker import Worker


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Task(TaskMixin, Base):
    """The calls of all functions."""

    __tablename__ = "example_task"

    id: Mapped[int] = mapped_column(primary_key=True)


class Stock(Base):
    """What is left."""

    __tablename__ = "example_stock"

    id: Mapped[int] = mapped_column(primary_key=True)
    parcels: Mapped[int]


tasks = TaskQueue(Task)


@tasks.task(max_attempts=5)
def send_invoice(order: int, amount: Decimal, *, copy: bool = False) -> str:
    """Send an invoice; return its number."""
    return f"{order}-{amount}{'-copy' if copy else ''}"


@tasks.task(transactional=True)
def ship(session: Session, parcels: int) -> None:
    """Take parcels out of the stock."""
    session.execute(update(Stock).values(parcels=Stock.parcels - parcels))


def main(url: str) -> None:
    """Place two orders, of which one is rolled back, and work."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Stock(parcels=10))
        send_invoice.enqueue(session, 7, Decimal("19.90"), copy=True)
        ship.enqueue(session, 3)
    with Session(engine) as session:
        send_invoice.enqueue(session, 8, Decimal("5.00"))
        session.rollback()  # nobody ordered: nothing is sent

    Worker(engine, tasks, drain=True).run()

    with Session(engine) as session:
        for job in session.scalars(select(Task).order_by(Task.id)):
            print(job.name, job.status, job.result)
        print("parcels left:", session.scalars(select(Stock.parcels)).one())
    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="sqlite:///example_tasks.db")
    main(parser.parse_args().url)

# Output:
#
# send_invoice done 7-19.90-copy
# ship done None
# parcels left: 7
