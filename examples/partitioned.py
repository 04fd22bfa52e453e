"""A queue is partitioned by day, so that an old day can be dropped in one statement.

    python examples/partitioned.py --url postgresql+psycopg2://user@host/database

The example runs on PostgreSQL, MySQL and MariaDB. SQLite has no partitions.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta

from sqlalchemy import Connection, Table, create_engine, event, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, claim, complete, count_by_status

DAYS = [date(2030, 1, 1) + timedelta(days=number) for number in range(3)]

#: MySQL and MariaDB name their partitions in CREATE TABLE.
BY_DAY = "RANGE COLUMNS (day) ({})".format(
    ", ".join(f"PARTITION d{day:%m%d} VALUES LESS THAN ('{day + timedelta(1)}')" for day in DAYS)
)


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Report(JobMixin, Base):
    """A report to write; partitions need the day in the key."""

    __tablename__ = "example_report"
    __table_args__ = {  # noqa: RUF012 - read once
        "postgresql_partition_by": "RANGE (day)",
        "mysql_partition_by": BY_DAY,
        "mariadb_partition_by": BY_DAY,
    }

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


@event.listens_for(Report.__table__, "after_create")
def add_days(table: Table, connection: Connection, **options: object) -> None:
    """Create PostgreSQL's partitions; a nightly job would create the partitions of later days."""
    if connection.dialect.name == "postgresql":
        for day in DAYS:
            connection.execute(
                text(
                    f"CREATE TABLE example_report_d{day:%m%d} PARTITION OF example_report "
                    f"FOR VALUES FROM ('{day}') TO ('{day + timedelta(1)}')"
                )
            )


def drop_day(session: Session, day: date) -> None:
    """Drop a day with all its rows in one statement.

    While this statement waits for the table, other statements wait behind it. It therefore
    has a short timeout, and a nightly job would try again.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL lock_timeout = '500ms'"))
        session.execute(text(f"DROP TABLE example_report_d{day:%m%d}"))
    else:
        session.execute(text("SET lock_wait_timeout = 1"))
        session.execute(text(f"ALTER TABLE example_report DROP PARTITION d{day:%m%d}"))


def main() -> None:
    """Enqueue reports for three days, finish two days, and drop the first day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="PostgreSQL, MySQL or MariaDB")
    engine = create_engine(parser.parse_args().url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)

    with Session(engine, expire_on_commit=False) as session:
        reports = [
            {"day": day, "title": f"{day:%d} {kind}"}
            for kind in ("sales", "stock", "staff")
            for day in DAYS
        ]
        for report in reports:  # single inserts give the same ids on every database
            session.execute(insert(Report), report)
        session.commit()

        while written := claim(session, Report, Report.day < DAYS[2], owner="writer", limit=4):
            session.commit()
            print("written:", ", ".join(report.title for report in written))
            complete(session, written)
            session.commit()

        print(counts_text(session))
        drop_day(session, DAYS[0])
        session.commit()
        print(f"without {DAYS[0]}: {counts_text(session)}")

        left = claim(session, Report, owner="writer", limit=10)
        print("left:", ", ".join(report.title for report in left))

    Base.metadata.drop_all(engine)
    engine.dispose()


def counts_text(session: Session) -> str:
    """Return the numbers of unclaimed and of done jobs."""
    counts = count_by_status(session, Report)
    session.rollback()
    return f"{counts['unclaimed']} unclaimed, {counts['done']} done"


if __name__ == "__main__":
    main()

# Run by the tests on postgresql, mysql, mariadb
#
# Output:
#
# written: 01 sales, 02 sales, 01 stock, 02 stock
# written: 01 staff, 02 staff
# 3 unclaimed, 6 done
# without 2030-01-01: 3 unclaimed, 3 done
# left: 03 sales, 03 stock, 03 staff
