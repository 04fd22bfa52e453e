"""Many processes claim in strict order: the order of their claims is the claim order."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from tests.contract.strict_order.claimers import ClaimLog, consume
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
        in_order = session.scalars(
            select(Task.id).order_by(Task.priority, Task.run_at, Task.id)
        ).all()

    run(queue_engine, [(consume, limit, seed) for seed in range(CONSUMERS)])

    with Session(queue_engine) as session:
        assert session.scalars(select(ClaimLog.job).order_by(ClaimLog.id)).all() == in_order
        assert len(set(session.scalars(select(ClaimLog.process)))) > 1


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
