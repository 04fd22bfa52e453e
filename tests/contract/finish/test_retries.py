"""What fail, release, cancel_claimed and retry make of a job: delays, attempts, kept errors."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ConstantBackoff,
    ExponentialBackoff,
    JobQueue,
    cancel,
    claim,
    enqueue,
    fail,
    fence_of,
    reap,
    retry,
)
from sa_jobqueue.worker import Failed, Outcome, Retry, Worker
from tests.models import Email, Order, Task, add_emails, add_tasks, names
from tests.support import SERVERS, statements_seen

pytestmark = pytest.mark.strategies("auto")

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
FORCE = timedelta(0)


def by_minutes(attempts: int) -> timedelta:
    """Delay by as many minutes as there were attempts."""
    return attempts * MINUTE


def minutes_left(session: Session) -> dict[str, int]:
    """Tell in how many minutes the tasks are due, by name."""
    session.expire_all()
    now = datetime.now(UTC)
    tasks = session.scalars(select(Task).order_by(Task.id))
    return {task.name: round((task.run_at - now) / MINUTE) for task in tasks}


def states(session: Session) -> dict[str, tuple[str, int]]:
    session.expire_all()
    tasks = session.scalars(select(Task).order_by(Task.id))
    return {task.name: (task.status, task.attempts) for task in tasks}


# Attempts


def test_a_job_whose_model_does_not_say_is_tried_20_times(session: Session) -> None:
    add_tasks(session, "a")
    enqueue(session, Task, [{"name": "b"}])
    session.execute(text("INSERT INTO task (name) VALUES ('c')"))

    for _ in range(21):
        fail(session, claim(session, Task, owner="w", limit=3), retry_in=FORCE)
        session.commit()

    assert set(states(session).values()) == {("failed", 20)}
    assert set(session.scalars(select(Task.max_attempts))) == {20}


@pytest.mark.parametrize("end", ["fail", "reap"])
def test_what_max_attempts_says_at_the_end_of_the_claim_counts(
    session: Session, other: Session, end: str
) -> None:
    add_tasks(session, "more", "fewer", "endless", attempts=1, max_attempts=2)
    claimed = claim(session, Task, owner="w", limit=3)
    session.commit()
    for name, most in [("more", 3), ("fewer", 1), ("endless", None)]:
        other.execute(update(Task).where(Task.name == name).values(max_attempts=most))
    other.commit()

    fail(session, claimed) if end == "fail" else reap(session, Task, max_runtime=FORCE)
    session.commit()

    assert states(session) == {
        "more": ("unclaimed", 2),
        "fewer": ("failed", 2),
        "endless": ("unclaimed", 2),
    }


def test_a_job_without_attempts_left_is_claimed_once_more_and_blocks_no_other(
    session: Session,
) -> None:
    """Its limit of attempts was lowered meanwhile, or it has none."""
    add_tasks(session, "used up", attempts=5, max_attempts=2)
    add_tasks(session, "none", max_attempts=0)
    add_tasks(session, "behind")

    claimed = claim(session, Task, owner="w", limit=3)
    fail(session, claimed[:2])

    assert states(session) == {
        "used up": ("failed", 6),
        "none": ("failed", 1),
        "behind": ("claimed", 1),
    }


# Delays


def test_no_job_is_tried_again_without_a_wait_and_holds_up_no_other(session: Session) -> None:
    session.add_all([Order(), Order(status="tried often", attempts=4), Order(status="behind")])
    session.commit()
    orders = claim(session, Order, owner="w", limit=2)  # which has no ScheduleMixin
    began = datetime.now(UTC)

    fail(session, orders, error=ValueError("no luck"))
    session.commit()
    took = (datetime.now(UTC) - began).total_seconds()

    (behind,) = claim(session, Order, owner="w", limit=3)
    assert behind.status == "behind"
    first, often = ((order.run_at - began).total_seconds() for order in orders)
    assert 0 < first <= 1 + took
    assert 10 < often <= 16 + took
    assert {order.last_error for order in orders} == {"ValueError: no luck"}


def test_the_policy_delays_entities_fences_and_plain_rows_each_by_its_attempts(
    engine: Engine, session: Session
) -> None:
    for attempts, name in enumerate(["entity", "fence", "expired", "row"], 1):
        add_tasks(session, name, attempts=attempts)
    queue = JobQueue(Task, backoff=by_minutes)
    entity, fence, expired = queue.claim(session, owner="w", limit=3)
    session.commit()
    session.expire_all()

    queue.fail(session, entity)
    queue.fail(session, [fence_of(fence), expired, expired])
    session.commit()
    with engine.begin() as connection:
        queue.fail(connection, queue.claim_rows(connection, owner="w", limit=2))

    assert minutes_left(session) == {"entity": 2, "fence": 3, "expired": 4, "row": 5}


def test_a_delay_that_is_given_overrules_the_policy_and_the_policy_of_the_verb_is_used(
    session: Session,
) -> None:
    add_tasks(session, "a", "b", "c")
    queue = JobQueue(Task, backoff=ConstantBackoff(HOUR))
    a, b, c = queue.claim(session, owner="w", limit=3)

    queue.fail(session, a, retry_in=5 * MINUTE)
    queue.fail(session, b, retry_in=FORCE)
    fail(session, c, backoff=ConstantBackoff(2 * HOUR, jitter=0))

    assert minutes_left(session) == {"a": 5, "b": 0, "c": 120}


def test_a_delay_that_cannot_be_is_refused_and_nothing_is_written(session: Session) -> None:
    add_tasks(session, "a")
    add_tasks(session, "b", attempts=3)
    queue = JobQueue(Task, backoff=lambda attempts: (2 - attempts) * MINUTE)
    claimed = queue.claim(session, owner="w", limit=2)

    with pytest.raises(ArgumentError, match="for 4 attempts must be a timedelta from zero"):
        queue.fail(session, claimed)
    for delay in ({"backoff": ConstantBackoff(HOUR)}, {"retry_in": HOUR}):
        add_emails(session, "a")
        with pytest.raises(ArgumentError, match="add RetryMixin"):
            fail(session, claim(session, Email, owner="w"), **delay)

    assert states(session) == {"a": ("claimed", 1), "b": ("claimed", 4)}
    queue.release(session, claimed)  # claimed by us as before


@pytest.mark.only_on(*SERVERS)
def test_a_batch_is_locked_in_the_order_of_its_keys(engine: Engine, session: Session) -> None:
    """So the UPDATEs, one for each delay, deadlock with nobody."""
    add_tasks(session, *"abc")
    queue = JobQueue(Task, backoff=ExponentialBackoff())
    tasks = list(queue.claim(session, owner="w", limit=3))
    session.commit()

    with statements_seen(engine) as seen:
        queue.fail(session, tasks[::-1])

    lines = [line for line in seen if line.startswith(("SELECT task", "UPDATE"))]
    assert re.search(r" task\.attempts .* ORDER BY task\.id FOR (NO KEY )?UPDATE$", lines[0])
    assert len(lines) >= 4


# The worker's policy


def waits(engine: Engine, queue: JobQueue[Task], outcome: Outcome, **options: Any) -> list[Any]:
    """Let each task fail once; return its delay."""
    told: list[Any] = []

    def handler(task: Task) -> Outcome:
        if outcome is None:
            raise ValueError("no")
        return outcome

    def tell(task: Task, outcome: Outcome) -> None:
        told.append(outcome.retry_in if isinstance(outcome, Failed) else outcome)

    Worker(engine, queue, handler, drain=True, on_outcome=tell, **options).run()  # type: ignore[arg-type]
    return [wait.in_ if isinstance(wait, Retry) else wait for wait in told]


@pytest.mark.parametrize("outcome", [None, Retry()])
def test_a_worker_uses_its_own_policy_else_the_queues_else_the_default(
    engine: Engine, session: Session, outcome: Outcome
) -> None:
    plain, own = JobQueue(Task), JobQueue(Task, backoff=by_minutes)
    found = []

    hourly = {"backoff": ConstantBackoff(HOUR, jitter=0)}
    for queue, options in [(own, hourly), (own, {}), (plain, {})]:
        add_tasks(session, "a", attempts=1, max_attempts=2)
        found += waits(engine, queue, outcome, **options)

    assert found[:2] == [HOUR, 2 * MINUTE]
    assert timedelta(seconds=1.8) <= found[2] <= timedelta(seconds=2)


@pytest.mark.parametrize("backoff", [lambda attempts: 1 // 0, lambda attempts: -MINUTE])
def test_a_worker_whose_policy_fails_uses_the_default_policy(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture, backoff: Any
) -> None:
    add_tasks(session, "a", "b", max_attempts=1)

    found = waits(engine, JobQueue(Task), None, backoff=backoff)

    assert all(timedelta(seconds=0.9) <= wait <= timedelta(seconds=1) for wait in found)
    assert "a backoff failed, and the default backoff is used" in caplog.text
    assert states(session) == {"a": ("failed", 1), "b": ("failed", 1)}


# Dead letters


def test_a_dead_letter_is_as_new_but_for_its_error_and_its_time(session: Session) -> None:
    (task,) = add_tasks(session, "a", max_attempts=1)
    due = task.run_at
    fail(session, claim(session, Task, owner="w"), error="no luck", backoff=ConstantBackoff(HOUR))
    session.commit()

    assert retry(session, task) == [task]
    session.commit()

    assert (task.status, task.owner, task.owner_date) == ("unclaimed", None, None)
    assert (task.attempts, task.max_attempts, task.last_error) == (0, 1, "no luck")
    assert task.run_at == due
    assert names(claim(session, Task, owner="w")) == ["a"]


def test_a_job_that_is_brought_back_is_due_now(session: Session) -> None:
    (task,) = add_tasks(session, "a", run_at=datetime.now(UTC) + HOUR)
    cancel(session, task)

    retry(session, task)
    session.commit()

    assert minutes_left(session) == {"a": 0}
