"""Jobs with UUID keys are claimed in the order of their creation.

    python examples/uuid_keys.py
    python examples/uuid_keys.py --url postgresql+psycopg2://user@host/database

Random keys have a random order. With ``order_by``, claims follow the column ``placed_at``, and
the claim index contains this column. Therefore no claim sorts, and no order waits for ever while
new orders come in.
The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy import DateTime, create_engine
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, claim, complete


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Order(JobMixin, Base):
    """An order of a shop; orders are packed in the order of placed_at."""

    __tablename__ = "example_uuid_order"
    __queue_args__ = {"order_by": ["placed_at"], "enqueued_at": "placed_at"}  # noqa: RUF012 - read once, as __table_args__ is

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    customer: Mapped[str] = mapped_column(String(100))
    placed_at: Mapped[datetime] = mapped_column(
        # Without microseconds, MySQL would round to whole seconds.
        DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb"),
        default=lambda: datetime.now(UTC),
    )


def at(hour: int) -> datetime:
    """Return an hour of the day on which the orders were placed."""
    return datetime(2024, 5, 17, hour, tzinfo=UTC)


def main() -> None:
    """Enqueue orders in a mixed order, and pack them in the order of placed_at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    engine = create_engine(parser.parse_args().url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)

    with Session(engine, expire_on_commit=False) as session:
        placed = {"carla": 11, "anna": 9, "edda": 14, "dirk": 13, "bert": 10}
        session.add_all(Order(customer=name, placed_at=at(hour)) for name, hour in placed.items())
        session.commit()

        while orders := claim(session, Order, owner="packer-1", limit=2):
            session.commit()
            print("packs", ", ".join(order.customer for order in orders))
            complete(session, orders)
            session.commit()

    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# packs anna, bert
# packs carla, dirk
# packs edda
