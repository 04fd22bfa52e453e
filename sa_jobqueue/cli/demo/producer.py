"""A producer: a process that inserts ten rows in each transaction."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from ...sessions.transactions import run_with_retries
from ..engine import make_engine
from .model import LENGTH, Inserted, Record
from .workload import GoOn, Workload

LETTERS = string.ascii_lowercase
LARGEST = 2**31 - 1

ROWS_PER_COMMIT = 10


@dataclass(frozen=True)
class Produced:
    """A producer reports the rows that it has committed."""

    producer: int
    rows: int


def produce(number: int, workload: Workload, go_on: GoOn) -> Iterator[Produced]:
    """Insert rows until told to stop."""
    engine = make_engine(workload.url)
    while go_on() is not None:
        run_with_retries(engine, lambda session: insert(session, number, log=workload.log))
        yield Produced(number, ROWS_PER_COMMIT)
        time.sleep(workload.pause)


def insert(session: Session, producer: int, *, log: bool) -> None:
    """Insert rows, and log them in the same transaction."""
    records = [random_record() for _ in range(ROWS_PER_COMMIT)]
    session.add_all(records)
    if log:
        session.flush()
        session.add_all(Inserted(record_id=record.id, producer=producer) for record in records)


def random_record() -> Record:
    """Return a row with random letters and a random number."""
    return Record(d="".join(random.choices(LETTERS, k=LENGTH)), e=random.randint(0, LARGEST))
