"""What complete, fail, release and cancel_claimed make of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, Claim, cancel_claimed, claim, fail, release
from tests.contract.finish.support import statuses
from tests.models import Email, Order, Task, add_tasks

pytestmark = pytest.mark.strategies("auto")


def test_release_gives_back_and_takes_the_attempt_back(
    session: Session, other: Session, strategy: str
) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    assert task is not None
    assert task.attempts == 1

    release(session, task)
    session.commit()

    again = other.scalars(select(Task)).one()
    assert (again.status, again.owner, again.owner_date, again.attempts) == (
        "unclaimed",
        None,
        None,
        0,
    )
    assert claim(other, Task, owner="x", strategy=strategy).first() is again


def test_a_failed_job_is_tried_again_while_attempts_remain(session: Session, strategy: str) -> None:
    add_tasks(session, "a", max_attempts=2)
    states = []

    for _ in range(2):
        task = claim(session, Task, owner="w", strategy=strategy).first()
        assert task is not None
        fail(session, task, error=ValueError("no luck"))
        session.commit()
        states.append((task.status, task.owner, task.attempts, task.last_error))

    assert states == [
        ("unclaimed", None, 1, "ValueError: no luck"),
        ("failed", "w", 2, "ValueError: no luck"),
    ]


def test_a_job_without_a_limit_of_attempts_is_tried_until_it_succeeds(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "a")

    for _ in range(5):
        task = claim(session, Task, owner="w", strategy=strategy).first()
        assert task is not None
        fail(session, task)
        session.commit()

    (task,) = session.scalars(select(Task))
    assert (task.status, task.attempts) == ("unclaimed", 5)


def test_a_job_that_keeps_failing_does_not_hold_up_the_jobs_behind_it(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "bad", "good")
    bad = claim(session, Task, owner="w", strategy=strategy)
    fail(session, bad, retry_in=timedelta(hours=1))
    session.commit()

    following = claim(session, Task, owner="w", limit=2, strategy=strategy)

    assert [task.name for task in following] == ["good"]
    assert bad[0].run_at > datetime.now(UTC) + timedelta(minutes=58)


def test_without_a_schedule_jobs_with_fewer_attempts_come_first(
    session: Session, strategy: str
) -> None:
    session.add_all([Order(), Order()])  # RetryMixin, and nothing that delays a failed job
    session.commit()
    tried = []

    for _ in range(4):
        order = claim(session, Order, owner="w", strategy=strategy).first()
        assert order is not None
        tried.append(order.id)
        fail(session, order)
        session.commit()

    first, second = sorted(set(tried))
    assert tried == [first, second, first, second]


def test_without_retry_mixin_a_failed_job_is_failed(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    fail(session, claimed[0], error="no")
    session.commit()

    assert statuses(other)[0] == ("a", "failed", "w")


def test_retry_in_needs_a_schedule(session: Session, claimed: Claim[Email]) -> None:
    with pytest.raises(ArgumentError, match="ScheduleMixin"):
        fail(session, claimed, retry_in=timedelta(seconds=1))


def test_cancel_claimed_cancels_our_own_claim(session: Session, strategy: str) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    assert task is not None

    cancel_claimed(session, task, reason="nobody wants it")
    session.commit()

    session.refresh(task)
    assert (task.status, task.owner, task.last_error) == ("cancelled", "w", "nobody wants it")
