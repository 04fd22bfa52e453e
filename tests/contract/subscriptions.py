"""Classes without the mixin, for claims by advisory locks; and the number of locks kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Index, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Claim, claim


class SubscriptionBase(DeclarativeBase):
    pass


class Subscription(SubscriptionBase):
    """A table of an application; `mailed` is the round of its last mail."""

    __tablename__ = "subscription"
    __table_args__ = (Index("ix_subscription_kind", "kind", "mailed", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int] = mapped_column(default=1)
    mailed: Mapped[int] = mapped_column(default=0)
    divisor: Mapped[int] = mapped_column(default=1)


NOT_MAILED = Subscription.mailed == 0


def add_subscriptions(session: Session, number: int, **columns: Any) -> None:
    """Commit subscriptions with the ids from 1 on."""
    rows = [{"id": id_, **columns} for id_ in range(1, number + 1)]
    session.execute(insert(Subscription), rows)
    session.commit()


def claim_subscriptions(session: Session, *where: Any, **options: Any) -> Claim[Subscription]:
    """Claim subscriptions that were not mailed, in the order of their ids."""
    options = {"limit": 2, "order_by": Subscription.id, **options}
    return claim(session, Subscription, NOT_MAILED, *where, strategy="advisory", **options)


def mark(subscriptions: Iterable[Subscription]) -> None:
    """Mark rows as mailed, as their application does."""
    for subscription in subscriptions:
        subscription.mailed = 1


def ids(rows: Iterable[Any]) -> list[Any]:
    return [row.id for row in rows]


def kept(engine: Engine) -> int:
    """Count the locks of rows that all connections to this database keep."""
    # Locks with two numbers; a test may hold other locks of its own.
    counting = text(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND database "
        "= (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with in_autocommit(engine) as connection:
        return int(connection.execute(counting).scalar_one())


@contextmanager
def in_autocommit(engine: Engine) -> Iterator[Any]:
    """Give a separate connection in autocommit to a bystander."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection
