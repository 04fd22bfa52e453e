"""The worker: claim, handle, finish."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, event, inspect, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import ArgumentError, JobQueue, claim
from sa_jobqueue.worker import Cancel, Retry, Worker
from sa_jobqueue.worker.idle import Idle
from tests.contract.worker.support import states, transient, work
from tests.models import Account, Email, Letter, Message, Task, add_emails, add_tasks
from tests.running import runs
from tests.support import statements_seen, until

SOON = timedelta(milliseconds=20)


def test_a_drained_queue_is_finished(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcde")
    handled: list[str] = []

    work(engine, JobQueue(Email), lambda email: handled.append(email.recipient), limit=2)

    assert handled == list("abcde")
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_jobs_are_deleted_where_the_model_or_the_worker_says_so(
    engine: Engine, session: Session
) -> None:
    session.add_all([Message(sequence=1), Message(sequence=2)])
    add_emails(session, "a")

    work(engine, JobQueue(Message), lambda message: None)
    work(engine, JobQueue(Email), lambda email: None, delete=True)

    assert session.scalars(select(Message)).all() == []
    assert session.scalars(select(Email)).all() == []


def test_a_handler_that_raises_fails_its_own_job_only(engine: Engine, session: Session) -> None:
    add_tasks(session, "a", "bad", "c", max_attempts=2)

    def handler(task: Task) -> None:
        if task.name == "bad":
            raise ValueError("no luck")

    work(engine, JobQueue(Task), handler, limit=3)

    assert states(session) == {
        "a": ("done", 1, None),
        "bad": ("failed", 2, "ValueError: no luck"),
        "c": ("done", 1, None),
    }


def test_a_handler_asks_for_another_try_or_cancels(engine: Engine, session: Session) -> None:
    add_tasks(session, "again", "never")

    def handler(task: Task) -> Retry | Cancel | None:
        if task.name == "never":
            return Cancel("no address")
        return Retry(in_=SOON, reason="busy") if task.attempts < 3 else None

    work(engine, JobQueue(Task), handler)

    assert states(session) == {
        "again": ("done", 3, "busy"),
        "never": ("cancelled", 1, "no address"),
    }


def test_an_invalid_outcome_fails_its_job(engine: Engine, session: Session) -> None:
    add_emails(session, "a")  # Email has no RetryMixin

    work(engine, JobQueue(Email), lambda email: Retry())

    assert session.scalars(select(Email.status)).all() == ["failed"]


def test_a_drain_leaves_jobs_scheduled_for_later(engine: Engine, session: Session) -> None:
    add_tasks(session, "now")
    add_tasks(session, "later", run_at=datetime.now(UTC) + timedelta(hours=1))

    work(engine, JobQueue(Task), lambda task: None)

    assert {name: status for name, (status, _, _) in states(session).items()} == {
        "now": "done",
        "later": "unclaimed",
    }


def test_a_drain_waits_for_jobs_whose_retry_is_due_later(engine: Engine, session: Session) -> None:
    add_tasks(session, "a")
    tries: list[int] = []

    def handler(task: Task) -> Retry | None:
        tries.append(task.attempts)
        return Retry(in_=timedelta(seconds=0.5)) if task.attempts == 1 else None

    work(engine, JobQueue(Task), handler)

    assert tries == [1, 2]


def test_jobs_committed_after_an_empty_claim_are_found(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = threading.Event()
    handled = threading.Event()
    worker = Worker(engine, JobQueue(Email), lambda email: handled.set(), poll=SOON)
    claim_at = Idle.claim_at

    def say_idle(pauses: Idle, **found: bool) -> float:
        idle.set()
        return claim_at(pauses, **found)

    monkeypatch.setattr(Idle, "claim_at", say_idle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert idle.wait(10)

    add_emails(session, "a")

    try:
        assert handled.wait(10)
    finally:
        worker.stop()
        thread.join(10)


def test_stopping_finishes_the_running_job_and_releases_the_rest(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "a", "b", "c")

    def handler(task: Task) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: worker.stopping)  # the signal reaches the main thread

    worker = Worker(engine, JobQueue(Task), handler, limit=3)
    with worker.stopping_on_signals(signal.SIGTERM):
        worker.run()

    assert states(session) == {
        "a": ("done", 1, None),
        "b": ("unclaimed", 0, None),
        "c": ("unclaimed", 0, None),
    }


def test_a_lost_claim_does_not_stop_the_worker(
    engine: Engine, session: Session, other: Session
) -> None:
    add_emails(session, "a", "b")

    def handler(email: Email) -> None:
        if email.recipient == "a":
            other.execute(update(Email).where(Email.id == email.id).values(owner="thief"))
            other.commit()

    told: list[str] = []
    work(
        engine,
        JobQueue(Email),
        handler,
        owner="w",
        limit=2,
        on_outcome=lambda email, outcome: told.append(email.recipient),
    )

    assert told == ["b"]
    found = session.execute(select(Email.status, Email.owner).order_by(Email.id))
    assert [tuple(row) for row in found] == [("claimed", "thief"), ("done", "w")]


@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
def test_jobs_that_only_another_version_knows_are_left_alone(
    engine: Engine, session: Session, kind: str
) -> None:
    """Neither a queue nor a status without a handler here is claimed, reaped or waited for."""
    add_tasks(session, "ours", "of a new queue", "of a new status")
    session.execute(update(Task).where(Task.name.like("%status")).values(status="checked"))
    session.commit()
    handled: list[str] = []
    queue = JobQueue(Task, Task.name.in_(["ours", "of a new status"]))

    def is_done() -> bool:
        session.rollback()
        return session.scalar(select(Task.status).where(Task.name == "ours")) == "done"

    with runs(kind, engine)({queue: lambda task: handled.append(task.name)}):
        until(is_done)

    found = session.execute(select(Task.name, Task.status, Task.attempts, Task.owner))
    assert {row.name: tuple(row[1:]) for row in found if row.name != "ours"} == {
        "of a new queue": ("unclaimed", 0, None),
        "of a new status": ("checked", 0, None),
    }
    assert handled == ["ours"]


def test_a_callback_sees_the_new_status_of_a_finished_job(engine: Engine, session: Session) -> None:
    add_emails(session, *"abc")
    told: list[str] = []

    work(
        engine,
        JobQueue(Email),
        lambda email: None,
        owner="w",
        limit=2,
        on_outcome=lambda email, outcome: told.append(email.status),
    )

    assert told == ["done"] * 3


def test_a_worker_runs_once_at_a_time(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    refused: list[str] = []

    def handler(email: Email) -> None:
        with pytest.raises(ArgumentError, match="runs already") as error:
            worker.run()
        refused.append(str(error.value))

    worker = Worker(engine, JobQueue(Email), handler, drain=True, poll=SOON)
    worker.run()
    worker.run()

    assert len(refused) == 1


def test_a_transaction_that_fails_is_run_again_without_handling_a_job_twice(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_emails(session, "a", "b")
    handled: list[str] = []
    to_fail = [1]

    @event.listens_for(engine, "commit")
    def deadlock_once(connection: object) -> None:
        if handled and to_fail:
            to_fail.clear()
            raise OperationalError("COMMIT", {}, transient(db_alias))

    try:
        work(engine, JobQueue(Email), lambda email: handled.append(email.recipient))
    finally:
        event.remove(engine, "commit", deadlock_once)

    assert (handled, to_fail) == (["a", "b"], [])
    assert session.scalars(select(Email.status)).all() == ["done", "done"]


def test_a_batch_is_one_transaction_not_two(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcdef")
    commits: list[int] = []

    @event.listens_for(engine, "commit")
    def count(connection: object) -> None:
        commits.append(1)

    try:
        work(engine, JobQueue(Email), lambda email: None, limit=2)
    finally:
        event.remove(engine, "commit", count)

    # Three turns with a batch, an empty turn, and a look whether all is done.
    assert len(commits) <= 5


def test_jobs_are_detached_and_loader_options_load_what_handlers_read(
    engine: Engine, session: Session
) -> None:
    session.add(Letter(copy_to=Account(name="x")))
    session.commit()
    seen: list[tuple[bool, str]] = []

    def handler(letter: Letter) -> None:
        assert letter.copy_to is not None
        seen.append((inspect(letter).detached, letter.copy_to.name))

    work(engine, JobQueue(Letter), handler, options=[selectinload(Letter.copy_to)])

    assert seen == [(True, "x")]


def test_callbacks_hear_of_claims_and_outcomes(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    claims: list[int] = []
    outcomes: list[tuple[str, object]] = []

    work(
        engine,
        JobQueue(Email),
        lambda email: None,
        limit=5,
        on_claim=lambda claimed: claims.append(len(claimed)),
        on_outcome=lambda email, outcome: outcomes.append((email.recipient, outcome)),
    )

    assert claims == [2]
    assert outcomes == [("a", None), ("b", None)]


def test_an_interval_makes_a_worker_pause_between_batches(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    started = datetime.now(UTC)

    work(engine, JobQueue(Email), lambda email: None, interval=timedelta(seconds=0.2))

    assert datetime.now(UTC) - started >= timedelta(seconds=0.4)


def test_a_wake_up_does_not_shorten_an_interval(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b")
    started = datetime.now(UTC)
    worker: Worker[Email] = Worker(
        engine,
        JobQueue(Email),
        lambda email: worker.wake(),
        drain=True,
        interval=timedelta(seconds=0.2),
    )

    worker.run()

    assert datetime.now(UTC) - started >= timedelta(seconds=0.4)


@pytest.mark.parametrize("unmarked", ["held", "advisory"])
def test_a_worker_refuses_claims_that_are_not_written_down(engine: Engine, unmarked: str) -> None:
    with pytest.raises(ArgumentError, match=unmarked):
        Worker(engine, JobQueue(Email, strategy=unmarked), lambda email: None)


def test_an_idle_worker_leaves_no_transaction_open(engine: Engine, session: Session) -> None:
    with statements_seen(engine):
        work(engine, JobQueue(Email), lambda email: None)

    add_emails(session, "a")  # on SQLite an open write transaction would refuse this
    assert claim(session, Email, owner="w").first() is not None
