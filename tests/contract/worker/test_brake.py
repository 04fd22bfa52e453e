"""The brake: a queue whose jobs all fail is claimed from more slowly."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Failed, Retry, Worker
from sa_jobqueue.worker.brake import FAILURES, Brake
from tests.contract.worker.support import SOON
from tests.models import Email, Task, add_emails, add_tasks

FAILED = Failed(ValueError("no route"))


def test_after_many_failures_one_job_is_claimed_after_each_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("sa_jobqueue.worker.brake.time.monotonic", lambda: now[0])
    brake = Brake("outbox")

    brake.note([FAILED] * (FAILURES - 1))
    assert brake.most(10) == 10
    brake.note([FAILED])
    assert brake.most(10) == 0

    pauses = []
    for _ in range(9):
        began = now[0]
        while not brake.most(10):
            now[0] += 0.1
        pauses.append(now[0] - began)
        assert brake.most(10) == 1
        brake.begin_pause()
        assert brake.most(10) == 0
        brake.note([FAILED])
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], abs=0.11)
    assert caplog.messages == [
        "the last 20 jobs of 'outbox' failed, want a retry or could not be finished: this worker "
        "claims from it more slowly until a job succeeds"
    ]

    brake.note([FAILED, None])
    assert brake.most(10) == 10


def test_jobs_that_want_a_retry_count_as_failures(caplog: pytest.LogCaptureFixture) -> None:
    mixed, retried = Brake("outbox"), Brake("inbox")

    for _ in range(FAILURES // 2):
        mixed.note([FAILED, Retry(reason="busy")])
    retried.note([Retry(reason="busy")] * FAILURES)
    retried.note([Retry(reason="busy")])

    assert (mixed.most(10), retried.most(10)) == (0, 0)
    assert len(caplog.messages) == 2


def test_a_queue_whose_jobs_all_want_a_retry_is_slowed_down(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.brake.FIRST_PAUSE", timedelta(hours=1))
    add_tasks(session, *("a" * (FAILURES + 30)))
    postponing, other = JobQueue(Task), JobQueue(Email)
    tried: list[int] = []

    @postponing.handler
    def do(task: Task) -> Retry:
        tried.append(task.id)
        if len(tried) == FAILURES:
            add_emails(session, "a")
        return Retry(timedelta(0), reason="busy")

    @other.handler
    def send(email: Email) -> None:
        worker.stop()

    queues: list[JobQueue[Any]] = [postponing, other]
    worker = Worker(engine, queues, limit=5, poll=SOON)
    worker.run()

    assert FAILURES <= len(tried) < FAILURES + 10


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_braked_worker_claims_one_job_in_each_pause(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    pause = timedelta(seconds=0.3)
    monkeypatch.setattr("sa_jobqueue.worker.brake.FIRST_PAUSE", pause)
    monkeypatch.setattr("sa_jobqueue.worker.brake.LONGEST_PAUSE", pause)
    add_emails(session, *("a" * (FAILURES + 30)))
    began: list[float] = []

    def send(email: Email) -> None:
        began.append(time.monotonic())
        if len(began) > FAILURES + 4 * concurrency + 5:  # more than were claimed before
            worker.stop()
        raise OSError("no route")

    worker = Worker(
        engine, JobQueue(Email), send, concurrency=concurrency, limit=concurrency, poll=SOON
    )
    worker.run()

    # A busy machine may delay a call, but not by a whole pause.
    assert began[-1] - began[-5] > 3 * pause.total_seconds()


def test_a_success_among_failures_keeps_the_brake_off() -> None:
    brake = Brake("outbox")

    for _ in range(10):
        brake.note([FAILED] * (FAILURES - 1) + [None])

    assert brake.most(10) == 10


def test_a_queue_that_fails_does_not_slow_down_another(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.brake.FIRST_PAUSE", timedelta(hours=1))
    add_emails(session, *("a" * (FAILURES + 30)))
    failing, working = JobQueue(Email), JobQueue(Task)
    tried: list[int] = []

    @failing.handler
    def send(email: Email) -> None:
        tried.append(email.id)
        if len(tried) == FAILURES:
            add_tasks(session, *"bcd")
        raise OSError("no route")

    done: list[str] = []

    @working.handler
    def do(task: Task) -> None:
        done.append(task.name)
        if len(done) == 3:
            worker.stop()

    queues: list[JobQueue[Any]] = [failing, working]
    worker = Worker(engine, queues, limit=5, poll=SOON)
    worker.run()

    assert done == ["b", "c", "d"]
    assert FAILURES <= len(tried) < FAILURES + 10


def test_a_drain_knows_no_brake(engine: Engine, session: Session) -> None:
    add_emails(session, *("a" * (FAILURES + 30)))
    tried: list[int] = []

    def send(email: Email) -> None:
        tried.append(email.id)
        raise OSError("no route")

    Worker(engine, JobQueue(Email), send, drain=True, poll=SOON).run()

    assert len(tried) == FAILURES + 30


def test_the_pauses_of_the_brake_do_not_depend_on_poll(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.idle.Idle._poll", lambda _: 1000.0)
    add_emails(session, *("a" * (FAILURES + 3)))
    tried: list[int] = []

    def fail(email: Email) -> None:
        tried.append(email.id)
        if len(tried) == FAILURES + 3:
            worker.stop()
        raise OSError("no route")

    worker = Worker(engine, JobQueue(Email), fail, reap_every=None)
    monkeypatch.setattr(worker, "_wakeups", lambda: None)
    worker.run()

    assert len(tried) == FAILURES + 3
