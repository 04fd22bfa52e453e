"""reap() takes back the claims of dead owners, and those whose lease is over."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    Owner,
    OwnerState,
    claim,
    complete,
    connection_owner,
    fail,
    fence_of,
    owner_state,
    reap,
    renew,
)
from sa_jobqueue.dialects.clock import as_utc, utc_now
from sa_jobqueue.verbs import ReapedJob, ReapReason
from tests.contract.reap.support import claimed, grow_old, of_the_dead, reaped, rows, statuses
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import SERVERS, begin_deferred

HOUR = timedelta(hours=1)
FORCE = timedelta(0)
PLAIN = "mailer-1"


# Whose claims, and when


def test_the_claims_of_a_dead_owner_are_taken_back_at_once(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    name = of_the_dead(engine, session, Email)

    found = reaped(session)

    assert (len(found), found.by_owner, found.unclaimed, found.failed) == (2, {name: 2}, 2, 0)
    assert {job.reason for job in found.jobs} == {ReapReason.DEAD_OWNER}
    assert (
        rows(session, Email, Email.status, Email.owner, Email.owner_date)
        == [("unclaimed", None, None)] * 2
    )
    assert recipients(claim(session, Email, owner="w", limit=5)) == ["a", "b"]


def test_the_claims_of_a_living_owner_are_never_taken_for_their_age(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        claimed(session, Email, owner)
        grow_old(session, Email, 100 * HOUR)

        assert not reaped(session, lease=HOUR)

    assert statuses(session) == ["claimed"]


def test_an_explicit_max_runtime_takes_the_claims_of_the_living_too(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a", "b")
    with Owner(engine) as owner:
        claimed(session, Email, owner)
        grow_old(session, Email, 2 * HOUR, Email.recipient == "a")

        found = reaped(session, max_runtime=HOUR)

        assert found.by_owner == {owner.name: 1}
    assert [job.reason for job in found.jobs] == [ReapReason.MAX_RUNTIME_OVER]
    assert statuses(session) == ["unclaimed", "claimed"]


def test_a_max_runtime_of_zero_takes_back_all_claims(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b", "c")
    with Owner(engine) as owner:
        claimed(session, Email, owner, 1)
        claimed(session, Email, PLAIN, 1)
        session.execute(update(Email).where(Email.recipient == "c").values(status="claimed"))

        assert reaped(session, max_runtime=FORCE).by_owner == {owner.name: 1, PLAIN: 1, None: 1}

    assert statuses(session) == ["unclaimed"] * 3


def test_the_claims_of_an_unknown_owner_wait_for_the_lease(session: Session) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)

    assert not reaped(session)
    grow_old(session, Email, timedelta(minutes=11))
    assert not reaped(session, lease=HOUR)
    found = reaped(session)

    (identity,) = rows(session, Email, Email.id)
    (job,) = found.jobs
    assert job == ReapedJob(identity, PLAIN, ReapReason.LEASE_OVER, False, job.owner_date)
    assert statuses(session) == ["unclaimed"]


def test_claims_without_an_owner_wait_for_the_lease(session: Session) -> None:
    add_emails(session, "a", "b")
    by_hand = {"status": "claimed", "owner_date": utc_now()}
    session.execute(update(Email).values(by_hand))
    grow_old(session, Email, HOUR, Email.recipient == "a")

    found = reaped(session)

    assert (found.by_owner, found.jobs[0].reason) == ({None: 1}, ReapReason.LEASE_OVER)
    assert statuses(session) == ["unclaimed", "claimed"]


@pytest.mark.only_on(*SERVERS)
def test_the_claims_of_a_closed_connection_still_wait_for_the_lease(
    engine: Engine, session: Session
) -> None:
    """A pool may close connections while its process goes on working."""
    add_emails(session, "a")
    with engine.connect() as connection:
        connection.detach()
        with Session(connection) as bound:
            name = connection_owner(bound)
            claimed(bound, Email, name)
    wait_until_gone(session, name)

    assert not reaped(session)
    grow_old(session, Email, timedelta(minutes=11))

    found = reaped(session)
    assert [(job.owner, job.reason) for job in found.jobs] == [(name, ReapReason.DEAD_OWNER)]


def wait_until_gone(session: Session, name: str) -> None:
    """Wait until the server has noticed the end of a connection."""
    deadline = time.monotonic() + 10
    while owner_state(session, name) is not OwnerState.DEAD:
        assert time.monotonic() < deadline
        session.rollback()
        threading.Event().wait(0.01)


def test_a_renewed_claim_is_not_taken_when_the_lease_of_its_claim_is_over(
    session: Session,
) -> None:
    add_emails(session, "a", "b")
    emails = claimed(session, Email, PLAIN)
    grow_old(session, Email, HOUR)
    fence = fence_of(emails[0])
    fence.token.dates.append(emails[0].owner_date)  # the time that this test has just set
    renew(session, emails[0])
    session.commit()

    found = reaped(session)

    assert [job.identity for job in found.jobs] == [fence_of(emails[1]).identity]
    complete(session, emails[0])


@pytest.mark.parametrize("lease", [None, timedelta(minutes=1)])
def test_a_queue_has_its_own_lease(session: Session, lease: timedelta | None) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)
    grow_old(session, Email, timedelta(minutes=5))

    found = JobQueue(Email, lease=lease).reap(session)

    assert len(found) == (0 if lease is None else 1)


def test_a_claim_without_owner_date_is_left_alone(session: Session) -> None:
    add_emails(session, "a")
    session.execute(update(Email).values(status="claimed", owner="hand"))
    session.commit()

    assert not reaped(session, lease=timedelta(microseconds=1))


# What becomes of the jobs


def test_a_reaped_job_keeps_its_attempts_and_fails_with_the_reason_after_the_last(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "last", max_attempts=1)
    add_tasks(session, "again", max_attempts=2)
    add_tasks(session, "endless", max_attempts=None)
    name = of_the_dead(engine, session, Task)
    grow_old(session, Task, HOUR)
    now = as_utc(session.scalars(select(utc_now())).one())

    found = reaped(session, Task)

    said = f"reaped, dead owner: {name}"
    state = rows(session, Task, Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert state == [
        ("last", "failed", name, 1, said),
        ("again", "unclaimed", None, 1, said),
        ("endless", "unclaimed", None, 1, said),
    ]
    assert (found.failed, found.unclaimed) == (1, 2)
    assert {job.failed: job.identity for job in found.jobs}[True] == rows(session, Task, Task.id)[0]
    (date,) = session.scalars(select(Task.owner_date).where(Task.status == "failed"))
    assert date is not None
    assert as_utc(date) >= now


@pytest.mark.parametrize(
    ("owner", "how", "said"),
    [
        (PLAIN, {}, "reaped, lease over: mailer-1"),
        (None, {}, "reaped, lease over: nobody"),
        (PLAIN, {"max_runtime": FORCE, "lease": 9 * HOUR}, "reaped, max_runtime over: mailer-1"),
    ],
)
def test_the_reason_is_kept(
    session: Session, owner: str | None, how: dict[str, Any], said: str
) -> None:
    add_tasks(session, "a")
    claimed(session, Task, PLAIN)
    session.execute(update(Task).values(owner=owner))
    grow_old(session, Task, HOUR)

    reaped(session, Task, **how)

    assert rows(session, Task, Task.status, Task.last_error) == [("unclaimed", said)]


def test_a_reaped_job_is_claimed_again_and_only_the_new_claim_finishes_it(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        mine = claimed(session, Email, owner)
    reaped(other)
    theirs = claimed(other, Email, "other")

    with pytest.raises(ClaimLost):
        complete(session, mine)
    session.commit()
    complete(other, theirs)
    other.commit()

    assert rows(session, Email, Email.status, Email.owner) == [("done", "other")]


def test_a_fail_of_a_reaped_job_changes_nothing(session: Session, other: Session) -> None:
    add_tasks(session, "a")
    mine = claimed(session, Task, PLAIN)
    reaped(other, Task, max_runtime=FORCE)

    with pytest.raises(ClaimLost):
        fail(session, mine, error="late")
    session.commit()

    assert rows(session, Task, Task.status, Task.last_error) == [
        ("unclaimed", "reaped, max_runtime over: mailer-1")
    ]


def test_loaded_entities_show_the_new_state(session: Session) -> None:
    tasks = add_tasks(session, "a", "b", max_attempts=1)
    claimed(session, Task, PLAIN, 1)
    session.execute(update(Task).values(touched="by us"))
    session.expire_all()
    assert [task.status for task in tasks] == ["claimed", "unclaimed"]

    reap(session, Task, max_runtime=FORCE)

    assert [(task.status, task.attempts) for task in tasks] == [("failed", 1), ("unclaimed", 0)]
    assert [task.touched for task in tasks] == ["touched", "by us"]


def test_a_savepoint_rolled_back_brings_the_claim_back_and_its_entities_show_it(
    session: Session, db_alias: str
) -> None:
    (email,) = add_emails(session, "a")
    emails = claimed(session, Email, PLAIN)
    begin_deferred(session.connection())
    savepoint = session.begin_nested()
    reap(session, Email, max_runtime=FORCE)
    assert email.status == "unclaimed"
    savepoint.rollback()

    assert email.status == "claimed"
    complete(session, emails)


def test_nothing_is_committed(session: Session, other: Session) -> None:
    add_emails(session, "a")
    claimed(session, Email, PLAIN)

    assert reap(session, Email, max_runtime=FORCE)
    session.rollback()

    assert statuses(other) == ["claimed"]
