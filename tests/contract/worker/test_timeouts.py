"""Handlers that run for too long: beyond their timeout, or beyond the grace of a stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, reap
from sa_jobqueue.worker import HandlerTimeout, Worker, job_context
from sa_jobqueue.worker.attempts import Attempts
from tests.contract.worker.support import SOON, states
from tests.models import Email, Task, add_emails, add_tasks
from tests.support import until

SHORT = timedelta(milliseconds=200)
LONG = timedelta(minutes=5)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What handlers wait for that overstay their time; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_handler_that_overstays_its_timeout_has_failed_and_ends_the_worker(
    engine: Engine, session: Session, released: threading.Event
) -> None:
    add_tasks(session, *"abcd", max_attempts=1)
    timed, untimed = JobQueue(Task, Task.name == "a"), JobQueue(Task, Task.name != "a")

    @timed.handler(timeout=SHORT)
    def overstay(task: Task) -> None:
        released.wait(60)

    @untimed.handler
    def handle(task: Task) -> None:
        until(lambda: job_context().asked_to_stop)  # it may end within the grace

    message = "^overstay still runs after its timeout of 0.2 s;"
    with pytest.raises(HandlerTimeout, match=message):
        Worker(engine, [timed, untimed], concurrency=2, limit=4, poll=SOON).run()

    found = states(session)
    assert found["a"][:2] == ("failed", 1)
    assert "HandlerTimeout" in str(found["a"][2])
    assert found["b"][:2] == ("done", 1)
    assert found["d"] == ("unclaimed", 0, None)


def test_a_handler_knows_the_time_that_is_left(engine: Engine, session: Session) -> None:
    add_tasks(session, *"ab")
    timed, untimed = JobQueue(Task, Task.name == "a"), JobQueue(Task, Task.name == "b")
    left: list[timedelta | None] = []
    timed.handler(timeout=LONG)(lambda task: left.append(job_context().time_left))
    untimed.handler(lambda task: left.append(job_context().time_left))

    Worker(engine, [timed, untimed], drain=True, poll=SOON).run()

    assert left[0] is not None
    assert timedelta(0) < left[0] <= LONG
    assert left[1] is None


def test_a_transactional_handler_that_overstays_its_timeout_is_rolled_back(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)

    @queue.handler(transactional=True, timeout=SHORT)
    def handle(own: Session, task: Task) -> None:
        task.priority = 7
        until(lambda: job_context().asked_to_stop)

    with pytest.raises(HandlerTimeout):
        Worker(engine, queue, poll=SOON).run()

    assert states(session)["a"][:2] == ("failed", 1)
    assert session.scalars(select(Task.priority)).all() != [7]


@pytest.mark.parametrize("error", [RuntimeError("the socket timed out"), SystemExit(3)])
def test_a_transactional_handler_that_raises_after_its_timeout_has_failed(
    engine: Engine, session: Session, error: BaseException
) -> None:
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)

    @queue.handler(transactional=True, timeout=SHORT)
    def handle(own: Session, task: Task) -> None:
        task.priority = 7
        own.flush()
        until(lambda: job_context().asked_to_stop)
        raise error

    with pytest.raises(HandlerTimeout):
        Worker(engine, queue, poll=SOON).run()

    found = states(session)["a"]
    assert found[:2] == ("failed", 1)
    assert "still runs after its timeout" in str(found[2])
    assert session.scalars(select(Task.priority)).all() != [7]


def test_what_a_handler_raises_after_it_was_given_up_changes_nothing(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(session, "a", max_attempts=1)
    queue = JobQueue(Task)
    gone_on = threading.Event()

    def job_is_failed() -> bool:
        session.rollback()
        return states(session)["a"][0] == "failed"

    @queue.handler(timeout=SHORT)
    def handle(task: Task) -> None:
        try:
            until(job_is_failed)
            raise RuntimeError("too late")
        finally:
            gone_on.set()

    with pytest.raises(HandlerTimeout):
        Worker(engine, queue, poll=SOON).run()
    gone_on.wait(30)

    assert states(session)["a"][:2] == ("failed", 1)
    assert len([text for text in caplog.messages if "failed, attempt 1 of 1" in text]) == 1


def test_a_job_whose_handler_has_not_returned_cannot_be_finished(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tasks(session, *"ab", max_attempts=1)
    monkeypatch.setattr(Attempts, "make", lambda self, in_hand: None)

    Worker(engine, JobQueue(Task), print, limit=2, drain=True, poll=SOON).run()

    found = states(session)
    assert {state[:2] for state in found.values()} == {("failed", 1)}
    assert "has not returned" in str(found["a"][2])


@pytest.mark.parametrize("timeout", [timedelta(0), 5])
def test_a_timeout_that_cannot_work_is_refused(timeout: timedelta) -> None:
    with pytest.raises(ArgumentError, match="timeout= takes a timedelta longer than zero"):
        JobQueue(Email).handler(timeout=timeout)


def test_after_the_grace_of_a_stop_the_jobs_are_released(
    engine: Engine,
    session: Session,
    released: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_tasks(session, *"abc")

    def handle(task: Task) -> None:
        worker.stop()
        if task.name == "a":
            released.wait(60)

    worker = Worker(engine, JobQueue(Task), handle, concurrency=2, limit=3, grace=SHORT)
    worker.run()

    found = states(session)
    assert found["a"] == ("unclaimed", 0, None)
    assert found["c"] == ("unclaimed", 0, None)
    (overdue,) = [each for each in caplog.records if "still runs 0.2 s" in each.getMessage()]
    assert "its job is released, and its handler goes on until its" in overdue.getMessage()
    assert overdue.getMessage().endswith("The handler is handle")
    fields = vars(overdue)
    assert (fields["job_class"], fields["attempt"], fields["status"]) == ("Task", 1, "claimed")
    assert 0.1 < fields["duration"] < 60


def test_after_the_grace_a_transactional_handler_is_rolled_back(
    engine: Engine, session: Session, released: threading.Event
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email)
    ended = threading.Event()

    @queue.handler(transactional=True)
    def handle(own: Session, email: Email) -> None:
        email.recipient = "changed"
        worker.stop()
        released.wait(60)
        ended.set()

    worker = Worker(engine, queue, grace=SHORT)
    worker.run()
    released.set()
    until(ended.is_set)

    until(lambda: len(reap(session, Email)) == 1)  # its owner is gone
    session.commit()
    assert session.execute(select(Email.recipient, Email.status)).all() == [("a", "unclaimed")]
