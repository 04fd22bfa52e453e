"""Queues with rates, and the function that the processes of their tests run."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, PriorityMixin, RetryMixin, ScheduleMixin, utc_now

# Inner: a server's time as the library reads it.
from sa_jobqueue.databases.clock import as_utc
from sa_jobqueue.rates import Rate, rate_table
from sa_jobqueue.tasks import TaskMixin, TaskQueue
from tests.contract.claimers import committed
from tests.support import make_engine


class RatedBase(DeclarativeBase):
    pass


class Mail(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, RatedBase):
    """A class with every mixin."""

    __tablename__ = "rated_mail"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int | None]
    region: Mapped[int | None]


class Note(JobMixin, RatedBase):
    """A class with JobMixin only."""

    __tablename__ = "rated_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int | None]


class Call(TaskMixin, RatedBase):
    """A table of tasks."""

    __tablename__ = "rated_call"
    id: Mapped[int] = mapped_column(primary_key=True)


RATES = rate_table(RatedBase.metadata)

HOUR = timedelta(hours=1)

#: Nothing comes back while a test runs.
THREE = Rate(3, per=HOUR, burst=3)

ALL = JobQueue(Mail, rate=THREE)
EACH = JobQueue(Mail, rate=THREE, rate_by=Mail.customer)
NOTES = JobQueue(Note, rate=THREE)
NOTES_EACH = JobQueue(Note, rate=THREE, rate_by=Note.customer)

CALLS = TaskQueue(Call, rate=THREE, rate_by=Call.name)


@CALLS.task
def one(number: int) -> None: ...


@CALLS.task
def other(number: int) -> None: ...


#: For several processes.
FIFTY = Rate(50, per=timedelta(seconds=1), burst=25)


def add(session: Session, entity: type[Any], *customers: int | None, **columns: Any) -> list[Any]:
    """Commit a job for each customer, in this order."""
    jobs = [entity(customer=customer, **columns) for customer in customers]
    for job in jobs:
        session.add(job)
        session.flush()
    session.commit()
    return jobs


def take(session: Session, queue: JobQueue[Any], limit: int = 9) -> list[int | None]:
    """Claim and commit; return the customers of the jobs."""
    customers = [job.customer for job in queue.claim(session, owner="w", limit=limit)]
    session.commit()
    return customers


def buckets(session: Session) -> int:
    """Count the rows of buckets."""
    number = len(session.execute(select(RATES.c.bucket)).all())
    session.rollback()
    return number


def claim_for(
    url: str, by_key: bool, seconds: float, all_there: Barrier, began: Any, number: int
) -> None:
    """Claim for some seconds, when the rate allows; note when this begins by the database."""
    engine: Engine = make_engine(url)
    queue = JobQueue(Note, rate=FIFTY, rate_by=Note.customer if by_key else None)
    with engine.connect() as connection:
        all_there.wait(60)
        began[number] = as_utc(connection.execute(select(utc_now())).scalar_one()).timestamp()
    until = time.monotonic() + seconds

    while time.monotonic() < until:
        claim = committed(
            engine, lambda session: queue.claim(session, owner=f"process-{os.getpid()}", limit=20)
        )
        if claim.refills_in is not None:
            time.sleep(claim.refills_in.total_seconds())
    engine.dispose()
