"""serial_by: at most one claimed job of each key, the oldest first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, cancel_claimed, complete, fail, release
from tests.contract.serial.keyed import BY_ACCOUNT, NOTES, THREE_EACH, Mail, add, claimed, ids
from tests.contract.steps import before_statement, unless_refused
from tests.support import SERVERS, Sessions, impatient

HOUR = timedelta(hours=1)
BOTH = pytest.mark.parametrize("queue", [BY_ACCOUNT, NOTES], ids=["every mixin", "plain"])


# One at a time, in their order


@BOTH
def test_a_claim_takes_the_oldest_job_of_each_key(session: Session, queue: JobQueue[Any]) -> None:
    a, b, c, _, d = add(session, queue.entity, 1, 1, 2, 2, 3)

    jobs = queue.claim(session, owner="w", limit=10)

    assert ids(jobs) == ids([a, c, d])
    assert [job.status for job in jobs] == ["claimed"] * 3
    assert b.status == "unclaimed"


def reap_at_once(session: Session, job: Mail) -> None:
    aged = datetime.now(UTC) - HOUR
    session.execute(update(Mail).where(Mail.id == job.id).values(owner_date=aged))
    assert len(BY_ACCOUNT.reap(session)) == 1


def fail_at_once(session: Session, job: Mail) -> None:
    fail(session, job, retry_in=timedelta(0))


@pytest.mark.parametrize(
    ("end", "following"),
    [
        *((end, 1) for end in (complete, cancel_claimed)),
        *((end, 0) for end in (release, fail_at_once, reap_at_once)),
    ],
)
def test_a_key_is_taken_until_its_job_ends_and_a_job_that_comes_back_is_the_next(
    session: Session, other: Session, end: Callable[..., None], following: int
) -> None:
    jobs = [job.id for job in add(session, Mail, 1, 1)]
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    session.commit()
    assert ids(BY_ACCOUNT.claim(other, owner="x", limit=2)) == []
    other.commit()

    end(session, job)
    session.commit()

    assert ids(BY_ACCOUNT.claim(other, owner="x", limit=2)) == [jobs[following]]


@pytest.mark.only_on(*SERVERS)
def test_keys_that_others_are_claiming_from_are_passed_over_until_they_roll_back(
    session: Session, other: Session
) -> None:
    first, last = add(session, Mail, 1, 2)
    BY_ACCOUNT.claim(session, owner="a")

    claim = BY_ACCOUNT.claim(other, owner="b")
    session.rollback()

    assert ids(claim) == [last.id]
    assert (claim.candidates, claim.lost) == (2, 1)
    assert ids(BY_ACCOUNT.claim(other, owner="b", limit=2)) == [first.id]


@pytest.mark.only_on(*SERVERS)
def test_a_locked_job_blocks_its_own_key_only(session: Session, other: Session) -> None:
    first, _, elsewhere = add(session, Mail, 1, 1, 2)
    session.execute(update(Mail).where(Mail.id == first.id).values(host="edited"))

    assert ids(BY_ACCOUNT.claim(other, owner="w")) == [elsewhere.id]


@pytest.mark.parametrize("finish", [False, True], ids=["claims", "finishes"])
@pytest.mark.parametrize(
    ("queue", "most"), [(BY_ACCOUNT, 1), (NOTES, 1), (THREE_EACH, 3)], ids=["mixins", "plain", "3"]
)
def test_no_step_between_two_statements_gives_a_key_too_many(
    engine: Engine, new_session: Sessions, queue: JobQueue[Any], most: int, finish: bool
) -> None:
    session, other = new_session(), new_session(impatient(engine))

    def overtake() -> None:
        """Insert earlier jobs, claim them, and perhaps finish them; commit each step."""
        if queue is NOTES:
            add(other, queue.entity, number, id=-1)
        else:
            add(other, queue.entity, *[number] * (most // 2 + 1), priority=-1)
        jobs = queue.claim(other, owner="b", limit=2)
        other.commit()
        if finish:
            queue.complete(other, jobs)
            other.commit()

    for number in range(12):  # more statements than a claim has
        add(session, queue.entity, *[number] * (most + 1))

        with before_statement(session, number, unless_refused(overtake, other)):
            jobs = queue.claim(session, owner="a", limit=2)
            session.commit()

        now = sum(claimed(session, queue.entity).values())
        assert len(jobs) <= most, number
        assert now <= most, number
        assert finish or now >= min(most, 2), number
        session.execute(delete(queue.entity))
        session.commit()
        session.expunge_all()
        other.expunge_all()


# Retries


@pytest.mark.parametrize(
    ("retry_in", "claimed"),
    [(HOUR, "elsewhere"), (timedelta(microseconds=1), "failed elsewhere")],
)
def test_a_job_that_is_tried_again_keeps_its_key(
    session: Session, retry_in: timedelta, claimed: str
) -> None:
    mails = {"elsewhere": add(session, Mail, 1, *[1] * 30, 2)[-1]}
    (mails["failed"],) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, mails["failed"], retry_in=retry_in)
    (mails["sooner"],) = add(session, Mail, 1, priority=-1)

    jobs = BY_ACCOUNT.claim(session, owner="w", limit=9)

    assert set(ids(jobs)) == {mails[name].id for name in claimed.split()}


def test_a_job_for_later_that_was_never_tried_does_not_block_its_key(session: Session) -> None:
    add(session, Mail, 1, priority=-1, run_at=datetime.now(UTC) + HOUR)
    (due,) = add(session, Mail, 1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=2)) == [due.id]
