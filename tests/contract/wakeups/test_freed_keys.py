"""The end of a claim frees its serial key, and so makes the next job of this key claimable.

PostgreSQL's notifications tell who is woken: workers of the same process are woken by the same
commits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, JobQueue, cancel, cancel_claimed, complete, fail, fence_of, reap
from tests.contract.wakeups.conftest import Heard
from tests.contract.wakeups.support import SHIPPED, Cargo, Crate, Pallet, idle, until_handled
from tests.contract.worker.driver import Workers

pytestmark = pytest.mark.only_on("postgresql")

CRATE = Crate.__tablename__


def add(session: Session, *ships: int | None, entity: Any = Crate, **columns: Any) -> None:
    """Commit a job for each ship, in this order."""
    for number, ship in enumerate(ships):
        session.add(entity(name=str(number), ship=ship, **columns))
        session.flush()
    session.commit()


def claim(session: Session, heard: Heard, queue: Any = SHIPPED, limit: int = 1) -> Claim[Any]:
    claimed: Claim[Any] = queue.claim(session, owner="w", limit=limit)
    session.commit()
    heard()
    return claimed


Finish = Callable[[Session, Claim[Any]], object]


def one_by_one(session: Session, jobs: Claim[Any]) -> None:
    for job in jobs:
        SHIPPED.complete(session, job)


def elsewhere(session: Session, jobs: Claim[Any]) -> None:
    complete(session, pickle.loads(pickle.dumps([fence_of(job) for job in jobs])))


FINISHES: dict[str, Finish] = {
    "complete": SHIPPED.complete,
    "one by one": one_by_one,
    "delete": lambda session, jobs: SHIPPED.complete(session, jobs, delete=True),
    "elsewhere": elsewhere,
    "cancel": cancel_claimed,
    "fail": lambda session, jobs: fail(session, jobs, error="broken"),
    "reap": lambda session, jobs: reap(session, Crate, max_runtime=timedelta(0)),
}


@pytest.mark.parametrize("finish", FINISHES.values(), ids=FINISHES)
def test_every_end_of_claims_wakes_once_those_who_wait_for_their_keys(
    session: Session, heard: Heard, finish: Finish
) -> None:
    add(session, 1, 1, 2, 2, max_attempts=1)
    jobs = claim(session, heard, limit=2)

    finish(session, jobs)
    session.commit()

    assert heard() == [CRATE]


def test_a_job_that_is_cancelled_in_its_retry_delay_frees_its_key(
    session: Session, heard: Heard
) -> None:
    add(session, 1, 1)
    (job,) = claim(session, heard)
    SHIPPED.fail(session, job)
    session.commit()
    heard()

    cancel(session, job)
    session.commit()

    assert heard() == [CRATE]


OF_CRITERIA = JobQueue(Crate, Crate.name == "0", serial_by=Crate.ship)
OF_STATUS: JobQueue[Any] = JobQueue(Cargo, serial_by=Cargo.ship, then="cleared")


@pytest.mark.parametrize(
    ("queue", "limit", "got", "told"),
    [
        pytest.param(JobQueue(Crate), 3, 2, [], id="no keys"),
        pytest.param(SHIPPED, 1, 1, [CRATE], id="leaves jobs"),
        pytest.param(SHIPPED, 2, 1, [], id="has room for more"),
        pytest.param(OF_CRITERIA, 2, 0, [CRATE], id="criteria of its own"),
        pytest.param(OF_STATUS, 2, 0, [Cargo.__tablename__], id="another status"),
    ],
)
def test_a_turn_wakes_others_for_jobs_that_it_may_have_left(
    session: Session, heard: Heard, queue: JobQueue[Any], limit: int, got: int, told: list[str]
) -> None:
    add(session, 1, 1, 1)
    session.add_all([Cargo(ship=1), Cargo(ship=1, status="cleared")])
    session.commit()
    jobs = claim(session, heard, queue)

    jobs = queue.turn(session, jobs, owner="w", limit=limit, delete=True)
    session.commit()

    assert (len(jobs), heard()) == (got, told)


def test_a_turn_wakes_others_if_somebody_was_claiming_from_its_keys(
    session: Session, other: Session, heard: Heard
) -> None:
    add(session, 1, 2)
    jobs = claim(session, heard)
    assert SHIPPED.claim(other, owner="x")

    assert not SHIPPED.turn(session, jobs, owner="w", limit=2)
    session.commit()

    assert heard() == [CRATE]


def test_a_freed_key_wakes_an_idle_worker(session: Session, heard: Heard) -> None:
    workers = Workers("threads", session.get_bind().engine)
    queue = workers.queue(Pallet, serial_by=Pallet.ship)
    session.add(Pallet(name="a", ship=1))
    session.flush()
    jobs = claim(session, heard, queue)
    session.add(Pallet(name="b", ship=1))
    session.commit()

    with idle(workers, queue):
        queue.complete(session, jobs)
        session.commit()
        until_handled(workers, "b")
