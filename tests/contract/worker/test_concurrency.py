"""Several handlers at once: no slot waits for another, and none begins what another has."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.process.runtime import THREADS
from sa_jobqueue.worker import Worker
from sa_jobqueue.worker.hands import Hands
from sa_jobqueue.worker.in_hand import InHand
from tests.contract.worker.support import SOON, hands_of, work
from tests.models import Base, Email, Task, add_emails, add_tasks
from tests.support import until


def test_handlers_run_at_the_same_time(engine: Engine, session: Session) -> None:
    add_emails(session, *"abc")
    met = threading.Barrier(3)

    work(engine, JobQueue(Email), lambda email: met.wait(20), concurrency=3)

    assert set(session.scalars(select(Email.status))) == {"done"}


def test_no_slot_waits_for_the_slowest_job(engine: Engine, session: Session) -> None:
    add_emails(session, *"abcdefgh")
    others = threading.Semaphore(0)

    def handler(email: Email) -> None:
        if email.recipient != "a":
            others.release()
            return
        for _ in range(7):  # all the others are handled while this one runs
            assert others.acquire(timeout=20)

    work(engine, JobQueue(Email), handler, concurrency=2)

    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handled_job_is_finished_while_another_runs(
    engine: Engine, session: Session, other: Session, concurrency: int
) -> None:
    add_emails(session, *"ab")

    def handler(email: Email) -> None:
        if email.recipient == "b":
            until(lambda: status_of(other, "a") == "done")

    work(engine, JobQueue(Email), handler, concurrency=concurrency, limit=2)

    assert set(session.scalars(select(Email.status))) == {"done"}


def status_of(session: Session, recipient: str) -> str:
    session.rollback()
    return session.scalars(select(Email.status).where(Email.recipient == recipient)).one()


def test_no_more_jobs_are_in_hand_than_the_limit(engine: Engine, session: Session) -> None:
    add_emails(session, *("a" * 40))
    most = []

    def handler(email: Email) -> None:
        time.sleep(0.002)
        most.append(len(hands_of(worker).all))

    worker = Worker(engine, JobQueue(Email), handler, concurrency=3, limit=5, drain=True, poll=SOON)
    worker.run()

    assert 3 <= max(most) <= 5
    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.parametrize(("ahead", "least", "most"), [(1000, 5, 6), (0, 3, 3)])
def test_jobs_are_claimed_ahead_that_begin_soon(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    least: int,
    most: int,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.hands.AHEAD", ahead)
    add_emails(session, *("a" * 40))
    in_hand: list[int] = []

    def enough() -> bool:
        in_hand.append(len(hands_of(worker).all))
        return max(in_hand) >= least

    def handler(email: Email) -> None:
        time.sleep(0.002)
        if not enough() and len(in_hand) > 10:  # the first ones tell how quick they are
            until(enough)

    worker = Worker(engine, JobQueue(Email), handler, concurrency=3, drain=True, poll=SOON)
    worker.run()

    assert least <= max(in_hand) <= most
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_jobs_are_claimed_when_half_of_those_that_may_wait_have_begun() -> None:
    hands: Hands[Any] = Hands(THREADS, threading.Event(), limit=9, slots=3)
    lane: Any = SimpleNamespace(timeout=None)
    claims: dict[int, int] = {}  # how many were wanted, by how many waited

    with hands:
        first = hands.begin_turn(in_slot=False)
        assert first is not None
        assert first.wanted == 9
        hands.end_turn([InHand(lane, number) for number in range(9)])
        running = [hands.next_step() for _ in range(3)]
        while not claims:
            hands.drop(running.pop(0))  # type: ignore[arg-type]  # a job
            running.append(hands.next_step())
            if (batch := hands.begin_turn(in_slot=False)) is not None:
                claims[len(hands.unstarted)] = batch.wanted

    assert claims == {3: 3}


def test_each_job_is_handled_once(engine: Engine, session: Session) -> None:
    add_emails(session, *("a" * 200))
    handled: Counter[int] = Counter()

    def handler(email: Email) -> None:
        handled[email.id] += 1

    workers = [
        Worker(engine, JobQueue(Email), handler, concurrency=4, limit=6, drain=True, poll=SOON)
        for _ in range(2)
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert (len(handled), set(handled.values())) == (200, {1})
    assert set(session.scalars(select(Email.status))) == {"done"}


def test_two_queues_share_the_slots_and_none_starves(engine: Engine, session: Session) -> None:
    add_emails(session, *("a" * 30))
    add_tasks(session, *"bcd")
    order: list[str] = []
    emails, tasks = JobQueue(Email), JobQueue(Task)

    @emails.handler
    def send(email: Email) -> None:
        order.append("email")

    @tasks.handler
    def do(task: Task) -> None:
        order.append("task")

    queues: list[JobQueue[Any]] = [emails, tasks]
    Worker(engine, queues, concurrency=2, drain=True, poll=SOON).run()

    assert Counter(order) == {"email": 30, "task": 3}
    assert "task" in order[:20]


def test_a_handler_sees_the_context_variables_of_the_caller(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    tenant: ContextVar[str] = ContextVar("tenant")
    seen: list[str] = []

    tenant.set("acme")
    work(engine, JobQueue(Email), lambda email: seen.append(tenant.get()), concurrency=2)

    assert seen == ["acme"]


def test_what_one_handler_raises_that_ends_the_run_ends_it_for_all(
    engine: Engine, session: Session
) -> None:
    add_tasks(session, *"abcdef")
    met = threading.Barrier(2)

    def handler(task: Task) -> None:
        if task.name in "ab":
            met.wait(20)
        if task.name == "a":
            raise SystemExit(3)
        until(lambda: hands_of(worker).ending)

    worker = Worker(engine, JobQueue(Task), handler, concurrency=2, limit=4)
    with pytest.raises(SystemExit):
        worker.run()

    states = dict(session.execute(select(Task.name, Task.status)).all())
    assert states == {"b": "done", **dict.fromkeys("acdef", "unclaimed")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency is a number"),
        ({"concurrency": 4, "limit": 3}, r"at least concurrency \(4\)"),
        ({"limit": 0}, "limit is a number"),
    ],
)
def test_numbers_that_cannot_work_are_refused(
    engine: Engine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        Worker(engine, JobQueue(Email), lambda email: None, **options)


def test_a_pool_that_is_too_small_for_transactional_handlers_is_refused(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        small = create_engine(engine.url, pool_size=2, max_overflow=1)
    else:
        small = create_engine(engine.url, pool_size=3, max_overflow=0)
    queue = JobQueue(Email)

    @queue.handler(transactional=True)
    def handle(session: Session, email: Email) -> None: ...

    with pytest.raises(ArgumentError, match=r"need up to 4 connections.*has 3"):
        Worker(small, queue, concurrency=2, drain=True).run()
    Worker(small, queue, concurrency=1, drain=True).run()
    small.dispose()


def test_a_static_pool_has_no_connection_for_a_second_slot(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=StaticPool)
    Base.metadata.create_all(engine)

    with pytest.raises(ArgumentError, match=r"gives all threads one connection.*leave out"):
        Worker(engine, JobQueue(Email), print, concurrency=2, drain=True).run()
    Worker(engine, JobQueue(Email), print, drain=True).run()


@pytest.mark.parametrize("option", ["concurrency", "timeout"])
def test_a_database_in_memory_has_one_thread(option: str) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    queue = JobQueue(Email)
    queue.handler(timeout=timedelta(seconds=1) if option == "timeout" else None)(print)

    with pytest.raises(ArgumentError, match="use a file, or a database server"):
        Worker(engine, queue, concurrency=2 if option == "concurrency" else 1, drain=True).run()


def test_a_handled_job_is_finished_while_the_next_handler_runs(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else wakes the supervisor in time.
    monkeypatch.setattr("sa_jobqueue.worker.hands.LONGEST_SLEEP", 60.0)
    monkeypatch.setattr("sa_jobqueue.worker.kept_connection.KEPT_FOR", 60.0)
    add_emails(session, *"abcd")
    finished: list[str] = []

    def is_finished() -> bool:
        with Session(engine) as other:
            of_a = select(Email.status).where(Email.recipient == "a")
            finished.append(other.scalars(of_a).one())
        return finished[-1] == "done"

    def handle(email: Email) -> None:
        if email.recipient == "a":
            time.sleep(0.3)  # the supervisor sees no handled job, and sleeps
        if email.recipient == "d":
            until(is_finished)

    work(engine, JobQueue(Email), handle, limit=4, reap_every=None)

    assert finished[-1] == "done"
