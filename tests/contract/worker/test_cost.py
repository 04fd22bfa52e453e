"""What a worker's Python costs for each job, in calls: no clock is asked."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine, insert, select, update

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.models import Base, Email

NONE: list[int] = []


def calls_of_a_job(queue: JobQueue[Email], *, batch: int, lost: list[int]) -> float:
    """Let a worker do one batch; return how many calls of its thread each of its jobs took.

    Args:
        lost: the keys of the jobs whose claims are lost.
    """
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    left, calls = select(Email.id).where(Email.status != "done"), 0
    with engine.begin() as connection:
        connection.execute(insert(Email), [{"recipient": "a"}] * batch)

    def steal(claim: object) -> None:
        if lost:
            with engine.begin() as connection:
                connection.execute(update(Email).where(Email.id.in_(lost)).values(owner="thief"))

    def count(frame: Any, kind: str, argument: Any) -> None:
        nonlocal calls
        calls += kind in ("call", "c_call")

    options: Any = {"limit": batch, "drain": True, "owner": "me", "on_claim": steal}
    worker = Worker(engine, queue, lambda email: None, **options)
    sys.setprofile(count)
    try:
        worker.run()
    finally:
        sys.setprofile(None)
    with engine.connect() as connection:
        assert len(connection.execute(left).all()) == min(len(lost), batch)
    return calls / batch


@pytest.mark.parametrize("lost", [NONE, list(range(1, 1001))], ids=["none is lost", "all are"])
def test_a_job_of_a_batch_of_1000_costs_no_more_than_one_of_a_batch_of_100(
    lost: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "sa_jobqueue")
    queue = JobQueue(Email)
    calls_of_a_job(queue, batch=10, lost=NONE)  # builds the statements

    spent = calls_of_a_job(queue, batch=1000, lost=lost)

    assert spent <= calls_of_a_job(queue, batch=100, lost=lost)
