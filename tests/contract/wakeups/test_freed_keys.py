"""The end of a claim frees its serial key, and so makes the next job of this key claimable."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, JobQueue, cancel, cancel_claimed, complete, fail, fence_of, reap
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.wakeups import woken_by_verbs
from tests.contract.wakeups.conftest import Heard
from tests.contract.wakeups.models import SHIPPED, Cargo, Crate, Pallet
from tests.contract.wakeups.support import SOON, Handled, claims_for_nothing, working
from tests.support import SERVERS, until

CRATE = Crate.__tablename__

Woken = Callable[[], int]


@pytest.fixture
def woken(engine: Engine) -> Iterator[Woken]:
    """Return how often workers of the process were woken since the last call."""
    rings: list[None] = []

    def collect() -> int:
        count = len(rings)
        rings.clear()
        return count

    with woken_by_verbs([mapping_of(Crate), mapping_of(Cargo)], lambda: rings.append(None)):
        yield collect


def add(session: Session, *ships: int | None, entity: Any = Crate, **columns: Any) -> list[Any]:
    """Commit a job for each ship, in this order."""
    jobs = [entity(name=str(number), ship=ship, **columns) for number, ship in enumerate(ships)]
    for job in jobs:
        session.add(job)
        session.flush()
    session.commit()
    return jobs


def claim(session: Session, queue: JobQueue[Any] = SHIPPED, limit: int = 1) -> Claim[Any]:
    claimed = queue.claim(session, owner="w", limit=limit)
    session.commit()
    return claimed


def fail_for_good(session: Session, jobs: Claim[Crate]) -> None:
    fail(session, jobs, error="broken")


def reap_for_good(session: Session, jobs: Claim[Crate]) -> None:
    assert reap(session, Crate, max_runtime=timedelta(0)).failed == 1


def complete_elsewhere(session: Session, jobs: Claim[Crate]) -> None:
    complete(session, pickle.loads(pickle.dumps(fence_of(jobs[0]))))


@pytest.mark.parametrize(
    "finish",
    [
        SHIPPED.complete,
        lambda session, jobs: SHIPPED.complete(session, jobs, delete=True),
        complete_elsewhere,
        cancel_claimed,
        fail_for_good,
        reap_for_good,
    ],
    ids=["complete", "delete", "elsewhere", "cancel", "fail", "reap"],
)
def test_every_end_of_a_claim_wakes_those_who_wait_for_its_key(
    session: Session, woken: Woken, finish: Callable[[Session, Claim[Crate]], object]
) -> None:
    add(session, 1, 1, max_attempts=1)
    jobs = claim(session)
    woken()

    finish(session, jobs)
    assert woken() == 0
    session.commit()

    assert woken() == 1


def test_a_job_that_is_cancelled_in_its_retry_delay_frees_its_key(
    session: Session, woken: Woken
) -> None:
    first, _ = add(session, 1, 1)
    SHIPPED.fail(session, claim(session))
    session.commit()
    woken()

    cancel(session, first)
    session.commit()

    assert woken() == 1


def test_a_finish_of_a_queue_without_keys_wakes_nobody(session: Session, woken: Woken) -> None:
    add(session, 1, 1)
    queue = JobQueue(Crate)
    jobs = claim(session, queue)
    woken()

    queue.complete(session, jobs)
    session.commit()

    assert woken() == 0


def test_a_turn_that_leaves_jobs_wakes_others_and_one_that_has_room_for_more_does_not(
    session: Session, woken: Woken
) -> None:
    add(session, 1, 1, 1)
    jobs = claim(session)
    woken()

    jobs = SHIPPED.turn(session, jobs, owner="w", limit=1)
    session.commit()
    assert (len(jobs), woken()) == (1, 1)

    jobs = SHIPPED.turn(session, jobs, owner="w", limit=2)
    session.commit()
    assert (len(jobs), woken()) == (1, 0)


def test_a_turn_wakes_others_for_jobs_that_its_queue_does_not_claim(
    session: Session, woken: Woken
) -> None:
    add(session, 1, 1)
    session.add_all([Cargo(ship=1), Cargo(ship=1, status="cleared")])
    session.commit()
    of_criteria = JobQueue(Crate, Crate.name == "0", serial_by=Crate.ship)
    of_status: JobQueue[Any] = JobQueue(Cargo, serial_by=Cargo.ship, then="cleared")

    for queue in (of_criteria, of_status):
        jobs = claim(session, queue)
        woken()
        assert not queue.turn(session, jobs, owner="w", limit=2, delete=True)
        session.commit()
        assert woken() == 1


@pytest.mark.only_on(*SERVERS)
def test_a_turn_wakes_others_if_somebody_was_claiming_from_its_keys(
    session: Session, other: Session, woken: Woken
) -> None:
    add(session, 1, 2)
    jobs = claim(session)
    woken()
    assert SHIPPED.claim(other, owner="x")

    assert not SHIPPED.turn(session, jobs, owner="w", limit=2)
    session.commit()

    assert woken() == 1


@pytest.mark.only_on("postgresql")
def test_a_freed_key_sends_one_notification(session: Session, heard: Heard) -> None:
    add(session, 1, 1, 2, 2)
    jobs = claim(session, limit=2)
    heard()

    for job in jobs:
        SHIPPED.complete(session, job)
    session.commit()

    assert heard() == [CRATE]


@pytest.mark.only_on("postgresql")
def test_a_freed_key_wakes_an_idle_worker(engine: Engine, session: Session) -> None:
    queue, handled = JobQueue(Pallet, serial_by=Pallet.ship), Handled()

    with working(engine, queue, handled) as worker:
        add(session, None, entity=Pallet)
        assert handled.next() == "0"
        session.add(Pallet(name="a", ship=1))
        session.flush()
        jobs = queue.claim(session, owner="w")
        session.add(Pallet(name="b", ship=1))
        session.commit()
        until(lambda: claims_for_nothing(worker), SOON)
        queue.complete(session, jobs)
        session.commit()
        assert handled.next() == "b"
