"""The functions that the processes of the tests of strict order run."""

from __future__ import annotations

import os
import random
from multiprocessing.synchronize import Barrier

from sqlalchemy import Engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Claim, JobQueue, LockTimeout
from tests.models import Task
from tests.support import make_engine


class LogBase(DeclarativeBase):
    pass


class ClaimLog(LogBase):
    """A row for each job of a claim, written in the claim's transaction."""

    __tablename__ = "claim_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[int]
    process: Mapped[int]


def consume(url: str, limit: int, seed: int, all_there: Barrier) -> None:
    """Claim until nothing is left; roll every fourth claim back."""
    engine = make_engine(url)
    queue = JobQueue(Task, strict_order=True)
    chance = random.Random(seed)
    all_there.wait(60)
    empty = 0
    while empty < 3:
        claimed = claim_once(engine, queue, limit, keep=chance.random() < 0.75)
        empty = 0 if claimed else empty + 1
    engine.dispose()


def claim_once(engine: Engine, queue: JobQueue[Task], limit: int, *, keep: bool) -> Claim[Task]:
    """Claim in a transaction that records the jobs.

    Any error but a lock timeout (a deadlock, say) ends the process.
    """
    while True:
        with Session(engine, expire_on_commit=False) as session:
            try:
                claimed = queue.claim(session, owner=f"process-{os.getpid()}", limit=limit)
            except LockTimeout:
                continue
            for task in claimed:
                line = {"job": task.id, "process": os.getpid()}
                session.execute(insert(ClaimLog), line)
            if keep:
                session.commit()
            else:
                session.rollback()
            return claimed
