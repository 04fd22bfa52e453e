"""serial_by: at most one claimed job of each key, the oldest first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, cancel_claimed, claimed_by, complete, fail, release, retry
from tests.contract.serial.keyed import BY_ACCOUNT, NOTES, Mail, add, claimed, ids
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


def fail_for_good(session: Session, job: Mail) -> None:
    session.execute(update(Mail).where(Mail.id == job.id).values(max_attempts=1))
    fail(session, job, error="broken")


def lose(session: Session, job: Mail) -> None:
    """Delete the job's row, so that its owner loses the claim."""
    session.execute(delete(Mail).where(Mail.id == job.id))


def reap_at_once(session: Session, job: Mail) -> None:
    aged = datetime.now(UTC) - HOUR
    session.execute(update(Mail).where(Mail.id == job.id).values(owner_date=aged))
    assert len(BY_ACCOUNT.reap(session)) == 1


def fail_at_once(session: Session, job: Mail) -> None:
    fail(session, job, retry_in=timedelta(0))


@pytest.mark.parametrize(
    ("end", "following"),
    [
        *((end, 1) for end in (complete, fail_for_good, cancel_claimed, lose)),
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


def test_a_job_brought_back_from_failed_waits_for_its_turn(session: Session) -> None:
    first, second = add(session, Mail, 1, 1, max_attempts=1)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job)
    BY_ACCOUNT.claim(session, owner="w")
    retry(session, first)
    session.commit()

    assert ids(BY_ACCOUNT.claim(session, owner="w")) == []
    complete(session, claimed_by(session, Mail, "w"))
    assert ids(BY_ACCOUNT.claim(session, owner="w")) == [first.id]
    assert second.status == "done"


@pytest.mark.only_on(*SERVERS)
def test_a_sooner_job_inserted_between_two_claimers_waits_for_its_key(
    session: Session, other: Session, new_session: Sessions
) -> None:
    """The head of the key changes while its claim is not committed."""
    add(session, Mail, 1)
    jobs = BY_ACCOUNT.claim(session, owner="a")
    third = new_session()
    (sooner,) = add(third, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    session.commit()
    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    BY_ACCOUNT.complete(session, jobs)
    assert ids(BY_ACCOUNT.claim(other, owner="b")) == []
    other.commit()
    session.commit()

    assert ids(BY_ACCOUNT.claim(other, owner="b")) == [sooner.id]


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


def overtake(
    session: Session, queue: JobQueue[Any], key: int, *, finish: bool
) -> Callable[[], None]:
    """Insert an earlier job, claim as much as possible, and perhaps finish it; commit each step."""

    def step() -> None:
        sooner = {"priority": -1} if queue is BY_ACCOUNT else {"id": -1}
        session.add(queue.entity(account_id=key, **sooner))
        session.commit()
        jobs = queue.claim(session, owner="b")
        session.commit()
        if finish:
            queue.complete(session, jobs)
            session.commit()

    return step


@BOTH
@pytest.mark.parametrize("finish", [False, True], ids=["claims", "finishes"])
def test_no_step_between_two_statements_gives_a_key_twice(
    engine: Engine, new_session: Sessions, queue: JobQueue[Any], finish: bool
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    for number in range(12):  # more statements than a claim has
        add(session, queue.entity, number, number)
        step = unless_refused(overtake(other, queue, number, finish=finish), other)

        with before_statement(session, number, step):
            jobs = queue.claim(session, owner="a", limit=2)
            session.commit()

        now = sum(claimed(session, queue.entity).values())
        assert len(jobs) <= 1, number
        assert now <= 1, number
        assert finish or now == 1, number
        session.execute(delete(queue.entity))
        session.commit()
        session.expunge_all()
        other.expunge_all()


# Retries


def test_a_delayed_job_blocks_its_key(session: Session) -> None:
    _, _, elsewhere = add(session, Mail, 1, 1, 2)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job, retry_in=HOUR)
    add(session, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == [elsewhere.id]


def test_a_retried_job_that_is_due_comes_before_the_others_of_its_key(session: Session) -> None:
    first, *_ = add(session, Mail, 1, *[1] * 30)
    (job,) = BY_ACCOUNT.claim(session, owner="w")
    fail(session, job, retry_in=timedelta(microseconds=1))
    add(session, Mail, 1, priority=-1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=9)) == [first.id]


def test_other_jobs_of_a_key_go_on_where_delayed_jobs_are_skipped(session: Session) -> None:
    skipping = JobQueue(Mail, serial_by=Mail.account_id, on_retry="skip")
    first, second, third = add(session, Mail, 1, 1, 1)
    (job,) = skipping.claim(session, owner="w")
    fail(session, job, retry_in=HOUR)
    session.commit()

    (job,) = skipping.claim(session, owner="w", limit=9)
    assert job is second
    session.execute(update(Mail).where(Mail.id == first.id).values(run_at=datetime.now(UTC)))
    complete(session, job)
    assert ids(skipping.claim(session, owner="w", limit=9)) == [first.id]
    assert third.status == "unclaimed"


def test_a_job_for_later_that_was_never_tried_does_not_block_its_key(session: Session) -> None:
    add(session, Mail, 1, priority=-1, run_at=datetime.now(UTC) + HOUR)
    (due,) = add(session, Mail, 1)

    assert ids(BY_ACCOUNT.claim(session, owner="w", limit=2)) == [due.id]
