"""A claim takes the first jobs of the claim order, and shows what it wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import ColumnElement, inspect, literal_column, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Fence,
    JobQueue,
    JobStatus,
    claim,
    claimed_by,
    complete,
    enqueue,
    fence_of,
    reap,
)
from tests.models import Account, Email, Task, add_emails, add_tasks, names, recipients
from tests.support import MARKING, Sessions, begin_deferred


def test_smaller_priorities_and_older_jobs_come_first_and_none_before_its_time(
    session: Session, strategy: str
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    add_tasks(session, "later", run_at=tomorrow, priority=-9)
    add_tasks(session, "low1", priority=5)
    add_tasks(session, "high1", "high2", priority=-5)
    add_tasks(session, "middle", "long due")
    add_tasks(session, "low2", priority=5)
    session.execute(update(Task).where(Task.name == "long due").values(run_at=yesterday))
    session.commit()

    tasks = claim(session, Task, owner="w", limit=5, strategy=strategy)

    assert names(tasks) == ["high1", "high2", "long due", "middle", "low1"]


def test_the_callers_order_replaces_the_claim_order(session: Session, strategy: str) -> None:
    add_tasks(session, "a", "c", "b", "d", priority=3)

    tasks = claim(session, Task, owner="w", limit=3, order_by=Task.name.desc(), strategy=strategy)

    assert names(tasks) == ["d", "c", "b"]


def test_criteria_are_joined_by_and_inside_the_limit(session: Session, strategy: str) -> None:
    add_emails(session, *["poison"] * 20, "a%", "ab%", "b%")
    percent: ColumnElement[str] = literal_column("'a%'")

    emails = claim(
        session,
        Email,
        Email.recipient.like(percent),
        Email.recipient.like("%b%"),
        owner="w",
        strategy=strategy,
    )

    assert recipients(emails) == ["ab%"]


@pytest.mark.strategies(*MARKING)
@pytest.mark.parametrize("rows", [False, True])
def test_what_a_claim_shows_is_what_it_wrote(
    session: Session, other: Session, strategy: str, rows: bool
) -> None:
    add_tasks(session, "a", "b")
    queue = JobQueue(Task, strategy=strategy)
    before = datetime.now(UTC) - timedelta(minutes=1)
    claimed = (queue.claim_rows if rows else queue.claim)(session, owner=5, limit=2)
    session.commit()
    session.expunge_all()  # nothing is loaded afterwards

    written = other.scalars(select(Task).order_by(Task.id)).all()

    columns = ["name", "status", "owner", "owner_date", "attempts", "run_at"]
    columns += [] if rows else ["touched"]  # a row may have been read before it was marked
    assert [[getattr(task, name) for name in columns] for task in claimed] == [
        [getattr(task, name) for name in columns] for task in written
    ]
    first, second = claimed
    assert {task.touched for task in written} == {"touched"}
    assert (first.status, first.owner) == (JobStatus.CLAIMED, "5")
    assert first.owner_date is not None
    assert first.owner_date.tzinfo is UTC
    assert first.owner_date == second.owner_date
    assert before < first.owner_date < before + timedelta(minutes=2)


def test_a_column_that_changes_with_each_update_shows_what_was_written_and_what_was_undone(
    session: Session,
) -> None:
    (task,) = add_tasks(session, "a")
    claim(session, Task, owner="w")
    session.execute(update(Task).values(touched="before"))
    session.commit()
    begin_deferred(session.connection())
    session.refresh(task)

    savepoint = session.begin_nested()
    complete(session, task)
    written = task.touched
    savepoint.rollback()

    assert (written, task.touched) == ("touched", "before")


@pytest.mark.strategies(*MARKING)
def test_a_claimed_job_is_claimed_by_nobody_until_it_is_released_or_reaped(
    session: Session, other: Session, strategy: str
) -> None:
    queue = JobQueue(Email, strategy=strategy)
    add_emails(session, "a", "b")

    def claimed_by_each() -> list[list[str]]:
        """Claim all there is, as the owner of the claims and as another, and commit."""
        found = []
        for claimer, owner in ((session, "w"), (other, "v")):
            found.append(recipients(queue.claim(claimer, owner=owner, limit=9)))
            claimer.commit()
        return found

    assert claimed_by_each() == [["a", "b"], []]
    assert claimed_by_each() == [[], []]
    queue.release(session, claimed_by(session, Email, "w")[:1])
    session.commit()
    assert claimed_by_each() == [["a"], []]
    reap(session, Email, max_runtime=timedelta(0))
    session.commit()
    assert claimed_by_each() == [["a", "b"], []]


def test_an_object_loaded_before_shows_the_claimed_state(
    session: Session, other: Session, strategy: str
) -> None:
    (email,) = add_emails(session, "a")
    session.commit()
    other.execute(update(Email).values(subject="new"))
    other.commit()

    claimed = claim(session, Email, owner="w", strategy=strategy)

    assert claimed.first() is email
    assert email.subject == "new"
    assert email.status == ("unclaimed" if strategy == "held" else "claimed")


def test_pending_changes_reach_the_database_before_the_claim_could_overwrite_them(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(autoflush=False)
    (email,) = add_emails(session, "a")
    email.subject = "mine"
    session.add(Email(recipient="b"))

    claimed = claim(session, Email, owner="w", limit=5, strategy=strategy)

    assert recipients(claimed) == ["a", "b"]
    assert email.subject == "mine"


def test_a_claim_commits_and_expires_nothing_of_the_callers(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(expire_on_commit=True)
    add_emails(session, "a")
    account = Account(name="x")
    session.add(account)
    session.flush()

    claim(session, Email, owner="w", strategy=strategy)

    assert not inspect(account).expired_attributes
    session.rollback()
    assert session.scalars(select(Account)).all() == []
    assert session.scalars(select(Email.status)).all() == ["unclaimed"]


@pytest.mark.strategies(*MARKING)
def test_a_queue_with_statuses_of_its_own_claims_and_finishes_jobs_in_these(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "not yet")
    add_tasks(session, "a", "b", "c", status="rendered")
    queue = JobQueue(Task, ready="rendered", during="sending", then="sent", strategy=strategy)

    first, second, third = queue.claim(session, owner="w", limit=5)
    found = queue.claimed_by(session, "w")
    queue.complete(session, first)
    queue.fail(session, second, error="no")
    queue.release(session, third)

    assert names(found) == ["a", "b", "c"]
    assert isinstance(fence_of(found[0]), Fence)
    assert [first.status, second.status, third.status] == ["sent", "rendered", "rendered"]


@pytest.mark.strategies("auto")
def test_claims_fences_and_generators_are_all_batches(session: Session, strategy: str) -> None:
    add_emails(session, *"abcdef")
    first, second, third = (
        claim(session, Email, owner="w", limit=2, strategy=strategy) for _ in range(3)
    )

    complete(session, (job for job in [first[0], first[1], *second, third.fences[0]]))
    complete(session, [third[1], third[1]])
    session.commit()

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.strategies("auto")
def test_a_batch_of_thousands_is_finished(session: Session, strategy: str) -> None:
    enqueue(session, Email, ({"recipient": "x"} for _ in range(12_000)))
    session.commit()
    rows = JobQueue(Email, strategy=strategy).claim_rows(session, owner="w", limit=12_000)

    complete(session, rows)
    session.commit()

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.strategies("auto")
def test_owners_that_differ_in_case_are_different_owners(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    claim(session, Email, owner="Worker", strategy=strategy)

    assert len(claimed_by(session, Email, "worker")) == 0
    assert len(claimed_by(session, Email, "Worker")) == 1
