"""A queue with its own order, one with keys, one in partitions, and a table that is no queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Index, String, event, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, ScheduleMixin
from sa_jobqueue.doctor import Finding, Report, examine

#: So old that other tests' transactions on the server give no finding.
PATIENT = timedelta(days=1)


class Base(DeclarativeBase):
    pass


class Mail(JobMixin, PriorityMixin, Base):
    """Claimed by priority."""

    __tablename__ = "doctor_mail"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50), default="r")
    touched: Mapped[str | None] = mapped_column(String(50))


class Timed(JobMixin, ScheduleMixin, Base):
    """Claimed when it is due."""

    __tablename__ = "doctor_timed"
    id: Mapped[int] = mapped_column(primary_key=True)


class Deed(JobMixin, Base):
    """Claimed by client, one at a time, with an index of the failed ones."""

    __tablename__ = "doctor_deed"
    __queue_args__ = {"per_key": "client", "failed_index": True}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    client: Mapped[int]


class Subscription(Base):
    """A table of somebody's application, without the mixin."""

    __tablename__ = "doctor_subscription"
    __table_args__ = (Index("ix_due", "kind", "mailed", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int] = mapped_column(default=1)
    mailed: Mapped[int] = mapped_column(default=0)
    round: Mapped[int] = mapped_column(default=7)


DUE = (Subscription.kind == 1, Subscription.mailed < 7)


def advisory(*where: Any, order_by: Any = ()) -> JobQueue[Subscription]:
    """Make a queue of subscriptions, claimed by advisory locks."""
    return JobQueue(Subscription, *(where or DUE), order_by=order_by, strategy="advisory")


def found(engine: Engine, queue: Any, check: str) -> list[Finding]:
    """Return the findings of one check, without its facts."""
    return [each for each in examined(engine, queue, check).findings if each.check == check]


def examined(engine: Engine, queue: Any, *checks: str) -> Report:
    return examine(engine, queue, checks=checks or None, old_snapshot=PATIENT)


def add_mails(engine: Engine, number: int, **columns: object) -> None:
    """Commit mails of five priorities, and have the planner know them."""
    if not number:
        return
    rows = [{"priority": number % 5, **columns} for number in range(number)]
    with engine.begin() as connection:
        connection.execute(insert(Mail), rows)
    analyze(engine, "doctor_mail")


def analyze(engine: Engine, table: str) -> None:
    run(engine, f"ANALYZE {'TABLE ' * (engine.dialect.name in ('mysql', 'mariadb'))}{table}")


def replace_index(
    engine: Engine, purpose: str, columns: str = "", where: str = "", of: Any = Mail
) -> None:
    """Replace an index of a model; without columns, drop it."""
    table = of.__tablename__
    name = "ix_due" if of is Subscription else f"ix_{table}_{purpose}"
    of_table = "" if engine.dialect.name in ("postgresql", "sqlite") else f" ON {table}"
    run(engine, f"DROP INDEX {name}{of_table}")
    if columns:
        predicate = f" WHERE {where}" if where else ""
        run(engine, f"CREATE INDEX {name} ON {table} ({columns}){predicate}")


def run(engine: Engine, statement: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement).close()


@contextmanager
def answering(engine: Engine, words: str, instead: str) -> Iterator[None]:
    """Have the server answer another statement where one begins with these words."""

    def answer(_: Any, __: Any, sent: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return (instead, ()) if sent.strip().startswith(words) else (sent, parameters)

    event.listen(engine, "before_cursor_execute", answer, retval=True)
    yield
    event.remove(engine, "before_cursor_execute", answer)
