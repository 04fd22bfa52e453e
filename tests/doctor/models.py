"""A queue with its own order, and a table that is no queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, Index, String, Table, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin
from sa_jobqueue.model.indexes import index_of
from sa_jobqueue.model.mapping import mapping_of


class Base(DeclarativeBase):
    pass


class Mail(JobMixin, PriorityMixin, Base):
    """Claimed by priority."""

    __tablename__ = "doctor_mail"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50), default="r")
    touched: Mapped[str | None] = mapped_column(String(50), onupdate="now")


class Deed(JobMixin, Base):
    """Claimed by client, one at a time, with an index of the failed ones."""

    __tablename__ = "doctor_deed"
    __queue_args__ = {"per_key": "client", "failed_index": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    client: Mapped[int]


class Alert(JobMixin, Base):
    """Claimed by channel."""

    __tablename__ = "doctor_alert"
    __queue_args__ = {"equality": "channel"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(String(20))


class Subscription(Base):
    """A table of somebody's application, without the mixin."""

    __tablename__ = "doctor_subscription"
    __table_args__ = (Index("ix_due", "kind", "mailed", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int] = mapped_column(default=1)
    mailed: Mapped[int] = mapped_column(default=0)
    round: Mapped[int] = mapped_column(default=7)


TABLE: Table = mapping_of(Mail).table

DUE = (Subscription.kind == 1, Subscription.mailed < 7)


def advisory(*where: object, order_by: object = ()) -> JobQueue[Subscription]:
    """Make a queue of subscriptions, claimed by advisory locks."""
    return JobQueue(Subscription, *(where or DUE), order_by=order_by, strategy="advisory")  # type: ignore[arg-type]  # criteria


def add_mails(engine: Engine, number: int, **columns: object) -> None:
    """Commit mails of five priorities, and have the planner know them."""
    rows = [{"priority": number % 5, **columns} for number in range(number)]
    with engine.begin() as connection:
        connection.execute(insert(Mail), rows)
    words = "ANALYZE TABLE" if engine.dialect.name in ("mysql", "mariadb") else "ANALYZE"
    run(engine, f"{words} doctor_mail")


def replace_claim_index(engine: Engine, *columns: str, where: str = "") -> None:
    """Replace the model's claim index; without columns, drop it."""
    replace_index(engine, "claim", *columns, where=where)


def replace_index(engine: Engine, purpose: str, *columns: str, where: str = "") -> None:
    """Replace the model's claim or reap index."""
    index = index_of(TABLE, purpose)
    assert index is not None
    predicate = f" WHERE {where}" if where else ""
    with engine.begin() as connection:
        index.drop(connection)
        if columns:
            connection.execute(
                text(f"CREATE INDEX {index.name} ON doctor_mail ({', '.join(columns)}){predicate}")
            )


def run(engine: Engine, statement: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement).close()


@contextmanager
def old_snapshot(engine: Engine) -> Iterator[None]:
    """Keep a transaction open that has read something."""
    level = "REPEATABLE READ"
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT count(*) FROM doctor_mail"))
        yield
        connection.rollback()
