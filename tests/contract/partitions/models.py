"""Tables in partitions, and the jobs in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Connection, String, event, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin, ScheduleMixin

PARTITIONS = 8
FIRST_DAY = dt.date(2030, 1, 1)
DAYS = [FIRST_DAY + dt.timedelta(days=number) for number in range(PARTITIONS)]


class Base(DeclarativeBase):
    pass


def on_innodb(partition_by: str, **options: str) -> dict[str, Any]:
    """Give MySQL and MariaDB the same options."""
    options = {"partition_by": partition_by, **options}
    return {f"{name}_{key}": v for name in ("mysql", "mariadb") for key, v in options.items()}


def by_day(days: list[dt.date]) -> str:
    """Write the partitions for InnoDB, one for each day."""
    ends = [f"PARTITION d{n} VALUES LESS THAN ('{day}')" for n, day in enumerate(days[1:])]
    ends.append(f"PARTITION d{len(ends)} VALUES LESS THAN (MAXVALUE)")
    return f"RANGE COLUMNS (day) ({', '.join(ends)})"


class Parcel(JobMixin, Base):
    """A table partitioned by a hash of its key, which is one column."""

    __tablename__ = "parcel"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "HASH (id)",
        **on_innodb("HASH (id)", partitions=str(PARTITIONS)),
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(String(20))


class Report(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A table with every mixin, partitioned by day, which is part of the key."""

    __tablename__ = "report"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "RANGE (day)",
        **on_innodb(by_day(DAYS)),
    }
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    day: Mapped[dt.date] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(String(20))


def add_partition(table: Any, number: int, values: str) -> None:
    """Have PostgreSQL create a partition with the table."""
    create = f"CREATE TABLE {table.name}_{number} PARTITION OF {table.name} FOR VALUES {values}"

    @event.listens_for(table, "after_create")
    def add(table: Any, connection: Connection, **options: Any) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(create))


for number, day in enumerate(DAYS):
    add_partition(Parcel.__table__, number, f"WITH (MODULUS {PARTITIONS}, REMAINDER {number})")
    end = day + dt.timedelta(days=1)
    add_partition(Report.__table__, number, f"FROM ('{day}') TO ('{end}')")


#: The keys of the second table begin where those of the first have ended.
FIRST_KEY: dict[type[Any], int] = {Parcel: 1, Report: 100_001}


def add(session: Session, entity: Any, rows: int, **columns: Any) -> list[int]:
    """Commit unclaimed rows, in turn into each partition; return their ids."""
    ids = list(range(FIRST_KEY[entity], FIRST_KEY[entity] + rows))
    lines: list[dict[str, Any]] = [{"id": number, **columns} for number in ids]
    if entity is Report:
        lines = [{**line, "day": DAYS[line["id"] % PARTITIONS]} for line in lines]
    session.execute(insert(entity), lines)
    session.commit()
    return ids


def ids(jobs: Any) -> list[int]:
    return [job.id for job in jobs]


def statuses(session: Session, entity: Any) -> dict[int, str]:
    """Read the status of every row, in a transaction of its own."""
    session.rollback()
    found = {row.id: row.status for row in session.execute(select(entity.id, entity.status))}
    session.rollback()
    return found
