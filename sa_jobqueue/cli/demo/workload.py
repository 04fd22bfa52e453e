"""What a producer and a consumer do, each in a process of its own.

A producer inserts ten rows a transaction. A consumer claims up to 100 rows
that begin with a random letter, works, and finishes them. Both pause between
two transactions. With ``log``, each writes what it did into the database, in
the very transaction that did it.
"""

from __future__ import annotations

import os
import random
import string
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ...fence.claim import Claim
from ...model.mapping import mapping_of
from ...model.status import UNCLAIMED
from ...queue import JobQueue
from ...sessions.transactions import run_with_retries
from ...strategies import AUTO
from ..databases import make_engine
from .model import LENGTH, Finished, Inserted, Record

LETTERS = string.ascii_lowercase
LARGEST = 2**31 - 1

ROWS_PER_COMMIT = 10
BATCH = 100


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the processes are told when they are started; durations are in seconds."""

    url: str
    producers: int
    consumers: int
    pause: float
    delete: bool
    strategy: str = AUTO
    log: bool = False


@dataclass(frozen=True)
class Produced:
    """A producer committed so many rows."""

    producer: int
    rows: int


@dataclass(frozen=True)
class Consumed:
    """A consumer claimed and finished a batch, perhaps an empty one."""

    consumer: int
    keys: tuple[int, ...]
    candidates: int | None
    lost: int | None


#: How a process asks whether to go on: None, stop; else whether to drain.
GoOn: TypeAlias = Callable[[], bool | None]


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
    """Return a row whose letters come in no order."""
    return Record(d="".join(random.choices(LETTERS, k=LENGTH)), e=random.randint(0, LARGEST))


def consume(number: int, workload: Workload, go_on: GoOn) -> Iterator[Consumed]:
    """Claim, work and finish until told to stop, or, when draining, until nothing is left."""
    engine = make_engine(workload.url)
    owner = f"consumer-{number}-{os.getpid()}"
    batch = 0
    while (draining := go_on()) is not None:
        queue = queue_of("" if draining else random.choice(LETTERS), workload.strategy)
        claimed = claim(engine, queue, owner)
        batch += bool(claimed)
        keys = finish(engine, queue, claimed, workload, consumer=number, batch=batch)
        yield Consumed(number, keys, claimed.candidates, claimed.lost)
        if draining and not claimed and run_with_retries(engine, nothing_waits):
            return
        time.sleep(0 if draining and claimed else workload.pause)


@cache
def queue_of(letter: str, strategy: str) -> JobQueue[Record]:
    """Return the queue of the rows that begin with a letter, or of all rows."""
    where = [Record.d.like(f"{letter}%")] if letter else []
    return JobQueue(Record, *where, strategy=strategy)


def claim(engine: Engine, queue: JobQueue[Record], owner: str) -> Claim[Record]:
    """Claim one batch in a transaction."""
    return run_with_retries(engine, lambda session: queue.claim(session, owner=owner, limit=BATCH))


def finish(
    engine: Engine,
    queue: JobQueue[Record],
    claimed: Claim[Record],
    workload: Workload,
    *,
    consumer: int,
    batch: int,
) -> tuple[int, ...]:
    """Finish one batch in a transaction, and log it there; return its keys."""
    keys = tuple(record.id for record in claimed)

    def complete_and_log(session: Session) -> None:
        queue.complete(session, claimed, delete=workload.delete)
        if workload.log:
            session.add_all(Finished(record_id=key, consumer=consumer, batch=batch) for key in keys)

    if claimed:
        run_with_retries(engine, complete_and_log)
    return keys


def nothing_waits(session: Session) -> bool:
    """Tell whether no row is unclaimed."""
    waits = mapping_of(Record).has_status(UNCLAIMED)
    return session.scalar(select(Record.id).where(waits).limit(1)) is None
