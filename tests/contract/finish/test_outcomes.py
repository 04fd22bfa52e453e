"""What complete, fail, release and cancel_claimed make of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, Claim, cancel_claimed, claim, enqueue, fail, release
from tests.contract.finish.support import statuses
from tests.models import Email, Order, Task, add_tasks

pytestmark = pytest.mark.strategies("auto")

ALL = select(Task)


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
        fail(session, task, error=ValueError("no luck"), retry_in=timedelta(0))
        session.commit()
        states.append((task.status, task.owner, task.attempts, task.last_error))

    assert states == [
        ("unclaimed", None, 1, "ValueError: no luck"),
        ("failed", "w", 2, "ValueError: no luck"),
    ]


def test_a_job_without_a_limit_of_attempts_is_tried_until_it_succeeds(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "a", max_attempts=None)

    for _ in range(25):
        task = claim(session, Task, owner="w", strategy=strategy).first()
        assert task is not None
        fail(session, task, retry_in=timedelta(0))
        session.commit()

    (task,) = session.scalars(select(Task))
    assert (task.status, task.attempts) == ("unclaimed", 25)


def test_a_job_whose_model_does_not_say_is_tried_20_times(session: Session, strategy: str) -> None:
    add_tasks(session, "a")
    enqueue(session, Task, [{"name": "b"}])
    session.execute(text("INSERT INTO task (name) VALUES ('c')"))

    for _ in range(21):
        tasks = claim(session, Task, owner="w", limit=3, strategy=strategy)
        fail(session, tasks, retry_in=timedelta(0))
        session.commit()

    found = {(task.max_attempts, task.status, task.attempts) for task in session.scalars(ALL)}
    assert found == {(20, "failed", 20)}


def test_no_job_is_tried_again_without_a_wait(session: Session, strategy: str) -> None:
    session.add_all([Order(), Order(status="tried often", attempts=4)])  # no ScheduleMixin
    session.commit()
    orders = claim(session, Order, owner="w", limit=2, strategy=strategy)

    fail(session, orders)
    session.commit()

    assert not claim(session, Order, owner="w", limit=2, strategy=strategy)
    first, often = ((order.run_at - datetime.now(UTC)).total_seconds() for order in orders)
    assert 0 < first <= 1
    assert 10 < often <= 16


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


def test_without_retry_mixin_a_failed_job_is_failed(
    session: Session, other: Session, claimed: Claim[Email]
) -> None:
    fail(session, claimed[0], error="no")
    session.commit()

    assert statuses(other)[0] == ("a", "failed", "w")


def test_retry_in_needs_retries(session: Session, claimed: Claim[Email]) -> None:
    with pytest.raises(ArgumentError, match="add RetryMixin"):
        fail(session, claimed, retry_in=timedelta(seconds=1))


def test_cancel_claimed_cancels_our_own_claim(session: Session, strategy: str) -> None:
    add_tasks(session, "a")
    task = claim(session, Task, owner="w", strategy=strategy).first()
    assert task is not None

    cancel_claimed(session, task, reason="nobody wants it")
    session.commit()

    session.refresh(task)
    assert (task.status, task.owner, task.last_error) == ("cancelled", "w", "nobody wants it")
