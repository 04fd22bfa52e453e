"""A bulk load is interrupted, resumed, and rolled back.

    python examples/09_bulk_load.py
    python examples/09_bulk_load.py --url postgresql+psycopg2://user@host/database

Ten thousand customers come from a file. The power fails in the middle of the load: the example
raises an error, and kill -9 would have the same effect. A log in a folder says which batches are
in the table. The same call resumes the load: it reads the file again and inserts the missing
batches. A customer who was in the table before does not belong to the load, and
stays when the load is rolled back. The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource, Progress


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Customer(Base):
    """A customer; the file gives the number."""

    __tablename__ = "example_bulk_customer"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(100))


class PowerCut(Exception):
    """The power fails."""


def write_file(path: Path) -> None:
    """Write the file of customers."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "name"])
        writer.writerows([number, f"customer {number}"] for number in range(1, 10_001))


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """Read the file of customers; a key has the type of its column."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {"number": int(row["number"]), "name": row["name"]}


def source(engine: Engine, file: Path) -> InsertSource:
    """Return the source of the load; the source is the same after the power cut."""
    rows = partial(read_file, file)
    return InsertSource(engine, Customer, rows, total=10_000, batch_size=1_000)


def fail_in_the_middle(progress: Progress) -> None:
    """Fail when four batches are in the table."""
    if progress.inserted == 4:
        raise PowerCut


def customers(engine: Engine) -> int:
    """Count the customers in the table."""
    with Session(engine) as session:
        return session.scalars(select(func.count()).select_from(Customer)).one()


def main() -> None:
    """Load, fail, resume, roll back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="sqlite://", help="default: SQLite in memory")
    engine = create_engine(parser.parse_args().url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Customer(number=0, name="the first of all"))

    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "customers.csv"), FileLog(Path(folder, "log"))
        write_file(file)
        load = BulkLoad(source(engine, file), log, progress=fail_in_the_middle)
        try:
            load.run()
        except PowerCut:
            print("power cut:", load.status())

        load = BulkLoad(source(engine, file), log)  # as a new process does
        load.run()
        print("resumed:", load.status())
        print("customers:", customers(engine))

        load.rollback()
        print("rolled back:", load.state)
        print("customers:", customers(engine))
        load.clean()

    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# power cut: BLOCKED: 4 of 10 batches, 4,000 rows inserted
# resumed: CLEANING: 10 of 10 batches, 10,000 rows inserted
# customers: 10001
# rolled back: CANCELLED
# customers: 1
