"""A consumer: a process that claims up to 100 rows, and finishes them.

Each claim asks for the rows that begin with a random letter; a drain asks for all rows.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ...fence.claim import Claim
from ...model.mapping import mapping_of
from ...model.status import UNCLAIMED
from ...queue import JobQueue
from ...sessions.transactions import run_with_retries
from ..engine import make_engine
from .model import Finished, Record
from .producer import LETTERS
from .workload import GoOn, Workload

BATCH = 100


@dataclass(frozen=True)
class Consumed:
    """A consumer reports a batch that it has finished; the batch may be empty."""

    consumer: int
    keys: tuple[int, ...]
    candidates: int | None
    lost: int | None


def consume(number: int, workload: Workload, go_on: GoOn) -> Iterator[Consumed]:
    """Claim and finish batches until told to stop, or, in a drain, until no row is left."""
    engine = make_engine(workload.url)
    owner = f"consumer-{number}-{os.getpid()}"
    batch = 0
    while (draining := go_on()) is not None:
        queue = queue_of("" if draining else random.choice(LETTERS), workload.strategy)
        claimed = claim(engine, queue, owner)
        batch += bool(claimed)
        keys = finish(engine, queue, claimed, workload, consumer=number, batch=batch)
        yield Consumed(number, keys, claimed.candidates, claimed.lost)
        if draining and not claimed and run_with_retries(engine, nothing_is_unclaimed):
            return
        time.sleep(0 if draining and claimed else workload.pause)


@cache
def queue_of(letter: str, strategy: str) -> JobQueue[Record]:
    """Return the queue of the rows that begin with a letter, or of all rows."""
    where = [Record.d.like(f"{letter}%")] if letter else []
    return JobQueue(Record, *where, strategy=strategy)


def claim(engine: Engine, queue: JobQueue[Record], owner: str) -> Claim[Record]:
    """Claim a batch in a transaction of its own."""
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
    """Finish a batch and log it, in one transaction; return the keys of its rows."""
    keys = tuple(record.id for record in claimed)

    def complete_and_log(session: Session) -> None:
        queue.complete(session, claimed, delete=workload.delete)
        if workload.log:
            session.add_all(Finished(record_id=key, consumer=consumer, batch=batch) for key in keys)

    if claimed:
        run_with_retries(engine, complete_and_log)
    return keys


def nothing_is_unclaimed(session: Session) -> bool:
    """Tell whether no unclaimed row is left."""
    unclaimed = mapping_of(Record).has_status(UNCLAIMED)
    return session.scalar(select(Record.id).where(unclaimed).limit(1)) is None
