"""What the mixin costs an insert: rows per second, beside the same model without it.

Three tables are compared: one without the queue's columns; one with columns and indexes like the
mixin's, but declared by hand, which shows what the table itself costs; and the queue.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, Session, mapped_column

from benchmarks.adapters.model import Base, Job, Numbered, Plain, make_engine
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.inserts import Rows, by_insert, by_session, compare_inserts
from benchmarks.harness.report import Figures, Row, table
from sa_jobqueue import enqueue
from sa_jobqueue.migration import timestamp_type

if __name__ == "__main__":
    run_by_name(__spec__.name)


class ByHand(Numbered, Base):
    """The queue's columns and indexes, without the mixin."""

    __tablename__ = "bench_by_hand"

    status: Mapped[str] = mapped_column(String(16), server_default="unclaimed")
    owner: Mapped[str | None] = mapped_column(String(64))
    owner_date: Mapped[datetime | None] = mapped_column(timestamp_type())


def _copy_indexes() -> None:
    for index in Job.__table__.indexes:  # type: ignore[attr-defined]  # of a Table, not of any FROM
        columns = [ByHand.__table__.c[column.key] for column in index.columns]
        name = str(index.name).replace("bench_job", "bench_by_hand")
        Index(name, *columns, **index.dialect_kwargs)


_copy_indexes()


def by_add_all(session: Session, model: type[Any], rows: Rows) -> None:
    """Insert as entities."""
    session.add_all([model(**row) for row in rows])


INSERT, ADD_ALL = "insert(Plain)", "add_all(Plain)"

WAYS = {
    INSERT: by_session(Plain, by_insert, INSERT),
    "insert(ByHand)": by_session(ByHand, by_insert, INSERT),
    "insert(Job)": by_session(Job, by_insert, INSERT),
    "enqueue(Job)": by_session(Job, enqueue, INSERT),
    ADD_ALL: by_session(Plain, by_add_all, ADD_ALL),
    "add_all(ByHand)": by_session(ByHand, by_add_all, ADD_ALL),
    "add_all(Job)": by_session(Job, by_add_all, ADD_ALL),
}


def tables(figures: Figures) -> str:
    """Write a row for each way."""
    columns = (
        ("", "{way}"),
        ("rows/s", "{rate:,.0f}"),
        ("time by that of", "{twin}"),
        ("", "{ratio:.2f}"),
        ("CPU of the client", "{cpu_ratio:.2f}"),
    )
    return table(columns, figures["results"])


@benchmark(number("--rows", 10_000), number("--rounds", 7), tables=tables)
def main(database: Database, *, rows: int, rounds: int) -> Figures:
    """Insert rows in each way in turn, and compare with the same model without the mixin."""
    return {"results": measure(database, rows=rows, rounds=rounds)}


def measure(database: Database, *, rows: int, rounds: int) -> list[Row]:
    """Insert so many rows in each way, with keys that the database gives."""

    def make_rows() -> Rows:
        return [{"payload": f"payload {number}"} for number in range(rows)]

    return compare_inserts(make_engine(database.url), WAYS, (Base.metadata,), make_rows, rounds)
