"""What a worker's Python costs for each job, in calls: no clock is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, JobQueue
from sa_jobqueue.worker import Worker
from tests.contract.worker.support import hands_of, work
from tests.models import Base, Email, add_emails
from tests.support import statements_seen


class Lossy(JobQueue[Email]):
    """A queue whose finishes tell that every claim was lost."""

    def complete(self, session: Any, jobs: Any, **options: Any) -> None:
        super().complete(session, jobs, **options)
        raise ClaimLost("complete", lost=list(jobs), kept=[])


def in_memory(jobs: int) -> Engine:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Email), [{"recipient": "a"}] * jobs)
    return engine


@contextmanager
def calls_counted() -> Iterator[Callable[[], int]]:
    """Count the calls of this thread."""
    calls = 0

    def count(frame: Any, kind: str, argument: Any) -> None:
        nonlocal calls
        calls += kind in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(None)


def calls_of_a_job(queue: JobQueue[Email], *, batch: int, spoil: bool = False) -> float:
    """Let a worker do one batch; return how many calls each of its jobs took."""

    def handle(email: Email) -> None:
        if spoil and email.id == 1:
            next(iter(hands_of(worker).unstarted)).lost = True  # as a renewal does

    worker = Worker(in_memory(batch), queue, handle, limit=batch, drain=True, owner="me")
    with calls_counted() as calls:
        worker.run()
    with Session(worker.engine) as session:
        left = session.scalars(select(Email.status).where(Email.status != "done")).all()
    assert len(left) == spoil
    return calls() / batch


def test_a_job_of_a_batch_of_1000_costs_no_more_than_one_of_a_batch_of_100() -> None:
    queue = JobQueue(Email)
    calls_of_a_job(queue, batch=10)  # builds the statements

    assert calls_of_a_job(queue, batch=1000) <= calls_of_a_job(queue, batch=100)


def test_a_lost_claim_makes_the_other_jobs_of_a_large_batch_no_dearer() -> None:
    queue = JobQueue(Email)
    calls_of_a_job(queue, batch=10)

    spoilt = calls_of_a_job(queue, batch=1000, spoil=True)

    assert spoilt <= calls_of_a_job(queue, batch=100, spoil=True)


def test_to_lose_a_whole_batch_of_1000_costs_no_more_for_each_job_than_100() -> None:
    queue = Lossy(Email)
    calls_of_a_job(queue, batch=10)

    assert calls_of_a_job(queue, batch=1000) <= calls_of_a_job(queue, batch=100)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("delete", [True, False])
def test_a_turn_of_done_jobs_takes_one_statement(
    engine: Engine, session: Session, delete: bool
) -> None:
    add_emails(session, *"abcdef")

    with statements_seen(engine) as seen:
        work(engine, JobQueue(Email), lambda email: None, limit=2, delete=delete, owner="w")

    finishes = [text for text in seen if "DELETE FROM" in text or "status='done'" in text]
    assert len(finishes) == 3
    assert all("status='claimed'" in text for text in finishes), finishes
