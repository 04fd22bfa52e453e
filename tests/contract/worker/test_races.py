"""What may happen at any moment of a run: a wake-up, an interruption, a refusal, a stuck slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, Fence, JobQueue
from sa_jobqueue.events import Event, listen, remove
from sa_jobqueue.process.runtime import THREADS
from sa_jobqueue.worker import Worker
from sa_jobqueue.worker.crew import Crew
from sa_jobqueue.worker.in_hand import Batch
from sa_jobqueue.worker.owner_name import OwnerName
from sa_jobqueue.worker.turns import TurnResult, Turns
from tests.contract.worker.support import SOON, hands_of, transient, work
from tests.models import Email, add_emails
from tests.support import statements_seen, until


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What handlers wait for that are stuck; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def statuses(session: Session) -> list[str]:
    session.rollback()
    return list(session.scalars(select(Email.status).order_by(Email.id)))


def test_a_worker_that_is_woken_during_a_claim_claims_again(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Turns.turn

    def turn_and_wake(turns: Turns[Any], batch: Batch[Any]) -> TurnResult[Any]:
        result = turn(turns, batch)
        if not statuses(session):
            add_emails(session, "a")
            worker.wake()
        return result

    monkeypatch.setattr(Turns, "turn", turn_and_wake)
    monkeypatch.setattr("sa_jobqueue.worker.idle.SHORTEST_POLL", timedelta(minutes=5))
    long = timedelta(minutes=5)
    worker = Worker(engine, JobQueue(Email), lambda email: worker.stop(), poll=long)
    worker.run()

    assert statuses(session) == ["done"]


@pytest.mark.timeout(60)
def test_an_interruption_between_two_steps_of_a_turn_ends_the_run(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, *"ab")
    do = Crew._do

    def interrupt(crew: Crew[Any], step: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and "done" in statuses(session):
            raise KeyboardInterrupt  # the turn is begun
        return do(crew, step)

    monkeypatch.setattr(Crew, "_do", interrupt)
    worker = Worker(engine, JobQueue(Email), lambda email: None, concurrency=2, poll=SOON)
    with pytest.raises(KeyboardInterrupt):
        worker.run()

    assert statuses(session) == ["done", "done"]


def test_handlers_that_are_stuck_do_not_hold_up_the_end_one_after_the_other(
    engine: Engine,
    session: Session,
    released: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.crew.INTERRUPTION", timedelta(seconds=30))
    add_emails(session, *"abc")
    met = threading.Barrier(3, action=lambda: worker.stop())

    def handler(email: Email) -> None:
        met.wait(20)
        released.wait(60)

    worker = Worker(engine, JobQueue(Email), handler, concurrency=3, grace=SOON)
    began = time.monotonic()
    worker.run()

    assert time.monotonic() < began + 25
    assert statuses(session) == ["unclaimed"] * 3


def test_a_claim_that_ends_the_run_costs_no_running_handler_its_finish(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email)
    claim, claims = queue.claim, []

    def refuse(*args: Any, **given: Any) -> Any:
        claims.append(1)
        if len(claims) > 1:
            raise ArgumentError("refused")
        return claim(*args, **given)

    monkeypatch.setattr(queue, "claim", refuse)
    worker = Worker(
        engine, queue, lambda email: until(lambda: hands_of(worker).error), concurrency=2
    )
    with pytest.raises(ArgumentError, match="refused"):
        worker.run()

    assert statuses(session) == ["done"]


def test_an_error_that_no_library_knows_does_not_end_the_heartbeat(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, lease=timedelta(milliseconds=600))
    renew, times = queue.renew, []

    def fail_once(session: Session, fences: list[Fence]) -> None:
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("of the application")
        renew(session, fences)

    monkeypatch.setattr(queue, "renew", fail_once)
    work(engine, queue, lambda email: until(lambda: len(times) > 2))

    assert statuses(session) == ["done"]


def test_what_a_handler_sets_in_its_context_the_next_one_does_not_see(
    engine: Engine, session: Session
) -> None:
    add_emails(session, *"ab")
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[str] = []

    def handler(email: Email) -> None:
        seen.append(tenant.get())
        tenant.set("acme")

    work(engine, JobQueue(Email), handler)

    assert seen == ["none", "none"]


def test_a_job_whose_start_ends_the_run_is_not_done(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email)

    def leave(event: Event) -> None:
        raise SystemExit(3)

    listen(queue, "after_start", leave)
    with pytest.raises(SystemExit):
        work(engine, queue, lambda email: None)
    remove(queue, "after_start", leave)

    assert statuses(session) == ["failed"]


@pytest.mark.only_on("sqlite")
@pytest.mark.timeout(20)
def test_a_signal_handler_may_set_a_flag_that_its_own_thread_begins_to_wait_for() -> None:
    flag = THREADS.flag()
    with flag._changed:  # where a wait begins
        flag.set()

    assert flag.wait(0)


@pytest.mark.only_on("sqlite")
def test_a_turn_that_is_run_again_begins_for_writing(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    commit, failed = Session.commit, list[int]()

    def fail_once(self: Session) -> None:
        if not failed and any("UPDATE" in text for text in seen):
            failed.append(len(seen))
            raise OperationalError("COMMIT", {}, transient("sqlite"))
        commit(self)

    monkeypatch.setattr(Session, "commit", fail_once)
    with statements_seen(engine) as seen:
        work(engine, JobQueue(Email), lambda email: None, reap_every=None, owner="w")

    assert seen[failed[0]] == "BEGIN IMMEDIATE"


def test_a_claim_that_waits_for_the_lock_of_its_owner_is_not_put_off_for_longer(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.idle.Idle._poll", lambda _: 1000.0)
    is_sure: property = vars(OwnerName)["is_sure"]
    unsure = threading.Event()
    add_emails(session, "a")

    def look_again(self: OwnerName) -> bool:
        if unsure.is_set():
            unsure.clear()
            return False
        return bool(is_sure.__get__(self))

    def handle(email: Email) -> None:
        if email.recipient == "b":
            worker.stop()
            return
        until(lambda: hands_of(worker).claim_at > time.monotonic())  # a claim has found nothing
        add_emails(session, "b")
        unsure.set()

    monkeypatch.setattr(OwnerName, "is_sure", property(look_again))
    worker = Worker(engine, JobQueue(Email), handle, concurrency=2, limit=2, reap_every=None)
    monkeypatch.setattr(worker, "_wakeups", lambda: None)
    worker.run()

    assert not unsure.is_set()
    session.rollback()
    assert set(session.scalars(select(Email.status))) == {"done"}
