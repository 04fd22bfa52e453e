"""A shop whose orders live in two databases: each order's jobs are rows beside it.

    python examples/18_shards.py

SQLAlchemy's ShardedSession sends each row to the database that the application chooses, here by
the region. Jobs go the same way, in the same transaction. One worker serves both databases.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sqlalchemy import ForeignKey, String, create_engine, select
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, enqueue
from sa_jobqueue.worker import Worker, job_context

REGIONS = ("eu", "us")


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Order(Base):
    """An order of a region."""

    __tablename__ = "example_shard_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(String(2))


class Email(JobMixin, RetryMixin, Base):
    """A job: an e-mail about an order, in the database of the order."""

    __tablename__ = "example_shard_email"
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(String(2))
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    text: Mapped[str] = mapped_column(String(50))


outbox = JobQueue(Email)
sent: list[str] = []  # two databases are worked on at once


@outbox.handler
def send(email: Email) -> None:
    """Send an e-mail."""
    sent.append(f"{job_context().database}: order {email.order_id} is {email.text}")


def choose_shard(mapper: Any, instance: Any, clause: Any = None) -> str:
    """Return the database of a row."""
    region: str = instance.region
    return region


def main(folder: Path) -> None:
    """Place orders in two databases, and send the e-mails about them."""
    engines = {
        region: create_engine(f"sqlite:///{folder}/example_{region}.db") for region in REGIONS
    }
    for engine in engines.values():
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
    sessions = sessionmaker(
        class_=ShardedSession,
        shards=engines,
        shard_chooser=choose_shard,
        identity_chooser=lambda *_, **__: REGIONS,
        execute_chooser=lambda _: REGIONS,
    )

    with sessions() as session:
        session.add_all(Order(id=1, region=region) for region in REGIONS)
        session.flush()
        session.add(Email(region="eu", order_id=1, text="placed"))
        paid = [{"region": region, "order_id": 1, "text": "paid"} for region in REGIONS]
        enqueue(session, Email, paid)
        session.commit()  # each database commits its rows: its orders with its jobs

    Worker(engines, outbox, drain=True).run()

    print(*sorted(sent), sep="\n")
    for region, engine in engines.items():
        with Session(engine) as session:
            print(region, "has", session.scalars(select(Email.status)).all())
        engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path())
    main(parser.parse_args().folder)

# Run by the tests on sqlite
#
# Output:
#
# eu: order 1 is paid
# eu: order 1 is placed
# us: order 1 is paid
# eu has ['done', 'done']
# us has ['done']
