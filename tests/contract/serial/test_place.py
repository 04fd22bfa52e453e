"""A queue with serial keys goes on where its last claim began, and keeps the order of each key."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.clock import Clock
from tests.contract.serial.keyed import Note, add


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


PER_KEY = pytest.mark.parametrize(
    "options",
    [{"serial_by": Note.account_id}, {"limit_by": {Note.account_id: 1}}],
    ids=["serial", "limit"],
)


def claimed_keys(queue: JobQueue[Any], session: Session, limit: int = 2) -> list[int]:
    """Claim and commit; return the primary keys of the jobs."""
    claim = queue.claim(session, owner="w", limit=limit)
    session.commit()
    return [job.id for job in claim]


@PER_KEY
def test_a_queue_per_key_goes_on_and_finds_what_others_put_back(
    session: Session, other: Session, clock: Clock, options: Any
) -> None:
    jobs = [job.id for job in add(session, Note, *range(10))]
    queue = JobQueue(Note, **options)
    first = [claimed_keys(queue, session) for _ in range(2)]
    other.execute(update(Note).where(Note.id == jobs[0]).values(status="unclaimed"))
    other.commit()

    behind = claimed_keys(queue, session)
    clock.jump(11)

    assert [*first, behind] == [jobs[:2], jobs[2:4], jobs[4:6]]
    assert claimed_keys(queue, session) == [jobs[0], jobs[6]]


@PER_KEY
def test_jobs_that_wait_for_their_key_keep_the_place(
    session: Session, other: Session, clock: Clock, options: Any
) -> None:
    """The key's next job comes as soon as the key is free, and before later jobs."""
    jobs = [job.id for job in add(session, Note, 1, 1, *range(2, 12))]
    queue = JobQueue(Note, **options)
    first = queue.claim(session, owner="w", limit=2)
    session.commit()
    meanwhile = [claimed_keys(queue, session) for _ in range(2)]
    other.execute(update(Note).where(Note.id == jobs[0]).values(status="done"))
    other.commit()

    assert [job.id for job in first] == [jobs[0], jobs[2]]
    assert meanwhile == [jobs[3:5], jobs[5:7]]
    assert claimed_keys(queue, session) == [jobs[1], jobs[7]]


def test_no_job_behind_the_place_overtakes_an_earlier_one_of_its_key(
    session: Session, other: Session, clock: Clock
) -> None:
    jobs = [job.id for job in add(session, Note, 1, 2, 3, 4, 1, 5, 6, 7)]
    queue = JobQueue(Note, serial_by=Note.account_id)
    for _ in range(2):
        claimed_keys(queue, session)
    other.execute(update(Note).where(Note.id == jobs[0]).values(status="unclaimed"))
    other.commit()

    assert claimed_keys(queue, session) == jobs[5:7]
    clock.jump(11)
    assert claimed_keys(queue, session) == [jobs[0], jobs[7]]
