"""Many processes claim in strict order: the order of their claims is the claim order."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, LockTimeout, enqueue
from tests.contract.claimers import Finished, LogBase, run_processes
from tests.models import Task
from tests.processes import FORKSERVER
from tests.support import make_engine

CONSUMERS = 10


def consume(url: str, limit: int, seed: int, all_there: Barrier) -> None:
    """Claim until nothing is left, and note the jobs of each claim; roll every fourth one back.

    Any error but a lock timeout (a deadlock, say) ends the process.
    """
    engine = make_engine(url)
    queue = JobQueue(Task, strict_order=True)
    chance = random.Random(seed)
    all_there.wait(60)
    empty = 0
    while empty < 3:
        with suppress(LockTimeout), Session(engine) as session:
            claimed = queue.claim(session, owner=f"process-{os.getpid()}", limit=limit)
            empty = 0 if claimed else empty + 1
            for task in claimed:
                session.execute(insert(Finished), {"job": task.id, "process": os.getpid()})
            if chance.random() < 0.75:
                session.commit()
    engine.dispose()


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.only_full)])
def test_ten_consumers_claim_in_exactly_the_claim_order(
    own_engine: Engine, limit: int, full: bool
) -> None:
    LogBase.metadata.create_all(own_engine)
    jobs = 2_000 if full else 100
    with Session(own_engine) as session:
        enqueue(session, Task, [{"name": str(n), "priority": n * 7 % 5} for n in range(jobs)])
        session.commit()
        in_order = select(Task.id).order_by(Task.priority, Task.run_at, Task.id)
        expected = session.scalars(in_order).all()
    url = own_engine.url.render_as_string(hide_password=False)
    all_there = FORKSERVER.Barrier(CONSUMERS)

    run_processes(consume, [(url, limit, seed, all_there) for seed in range(CONSUMERS)])

    with Session(own_engine) as session:
        assert session.scalars(select(Finished.job).order_by(Finished.id)).all() == expected
        assert len(set(session.scalars(select(Finished.process)))) > 1
