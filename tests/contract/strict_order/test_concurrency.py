"""Many processes claim in strict order: the order of their claims is the claim order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, enqueue
from tests.contract.strict_order.claimers import WAITING, ClaimLog, consume, produce
from tests.models import Task
from tests.processes import FORKSERVER

CONSUMERS = 10


@pytest.mark.load
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_claim_in_exactly_the_claim_order(
    queue_engine: Engine, limit: int, full: bool
) -> None:
    jobs = 2_000 if full else 100
    with Session(queue_engine) as session:
        enqueue(session, Task, [{"name": str(n), "priority": n * 7 % 5} for n in range(jobs)])
        session.commit()
        in_order = session.scalars(WAITING).all()

    run(queue_engine, [(consume, limit, seed, True) for seed in range(CONSUMERS)])

    with Session(queue_engine) as session:
        assert session.scalars(select(ClaimLog.job).order_by(ClaimLog.id)).all() == in_order
        assert len(set(session.scalars(select(ClaimLog.process)))) > 1


@pytest.mark.load
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", [3, pytest.param(1, marks=pytest.mark.only_full)])
def test_no_job_is_claimed_before_an_earlier_job_that_was_there_at_the_claim(
    queue_engine: Engine, limit: int, full: bool
) -> None:
    jobs = 500 if full else 60
    with Session(queue_engine) as session:
        enqueue(session, Task, [{"name": str(n)} for n in range(jobs)])
        session.commit()

    run(
        queue_engine,
        [(consume, limit, seed, True) for seed in range(CONSUMERS)]
        + [(produce, jobs, seed) for seed in range(2)],
    )

    with Session(queue_engine) as session:
        claims(session, JobQueue(Task, strict_order=True))  # jobs that came after the last look
        assert not overtaken(session)


def claims(session: Session, queue: JobQueue[Task]) -> None:
    """Claim what is left."""
    while queue.claim(session, owner="last"):
        session.commit()


def overtaken(session: Session) -> list[tuple[int, int]]:
    """List each claimed job with the earlier jobs that it overtook."""
    rank = {
        job: place
        for place, job in enumerate(
            session.scalars(select(Task.id).order_by(Task.priority, Task.run_at, Task.id))
        )
    }
    lines = session.scalars(select(ClaimLog).order_by(ClaimLog.id)).all()
    taken: set[int] = set()
    found = []
    for line in lines:
        taken.add(line.job)
        sooner = [job for job in json.loads(line.waiting) if rank[job] < rank[line.job]]
        found += [(job, line.job) for job in sooner if job not in taken]
    return found


def run(engine: Engine, jobs: list[tuple[Any, ...]]) -> None:
    """Run a process for each function with its arguments, all at once; fail if one fails."""
    all_there = FORKSERVER.Barrier(len(jobs))
    url = engine.url.render_as_string(hide_password=False)
    processes = [
        FORKSERVER.Process(target=work, args=(url, *given, all_there), daemon=True)
        for work, *given in jobs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * len(processes)
