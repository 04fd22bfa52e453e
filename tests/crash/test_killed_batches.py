"""Workers that are killed while they handle a batch, or by a job of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Worker
from tests.contract.worker import ledger
from tests.contract.worker.ledger import Entry, Invoice
from tests.models import Task, add_tasks
from tests.processes import Victim
from tests.support import make_engine, until

#: A lease so long that no claim is reaped for its age.
QUEUE: dict[str, Any] = {"lease": timedelta(hours=1), "backoff": lambda attempts: timedelta(0)}

#: How long a worker may run before it is killed, in seconds: several batches.
LONGEST = 0.3


def run(engine: Engine, queue: JobQueue[Any], **options: Any) -> None:
    soon = timedelta(milliseconds=100)
    Worker(engine, queue, poll=soon, reap_every=soon, **options).run()


def found(engine: Engine) -> dict[str, tuple[str, int]]:
    with Session(engine) as session:
        return {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}


def hold_a_batch(url: str, pipe: Connection) -> None:
    """Take a batch, tell of it, and wait."""
    queue = JobQueue(Task, **QUEUE)

    @queue.handler(batch=5)
    def handle(tasks: list[Task]) -> None:
        pipe.send([task.name for task in tasks])
        pipe.recv()

    run(make_engine(url), queue)


def finish(url: str, pipe: Connection | None = None) -> None:
    """Drain the queue; die of a job that is poison."""
    queue = JobQueue(Task, **QUEUE)

    @queue.handler(batch=5)
    def handle(tasks: list[Task]) -> None:
        if "poison" in [task.name for task in tasks]:
            os.kill(os.getpid(), signal.SIGKILL)

    run(make_engine(url), queue, drain=True)


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
def test_each_job_of_a_killed_workers_batch_is_tried_again(engine: Engine) -> None:
    with Session(engine) as session:
        add_tasks(session, *"abcdefg")
    with Victim(engine.url, hold_a_batch) as victim:
        assert victim.hears() == [*"abcde"]
    assert [status for status, _ in found(engine).values()].count("claimed") == 5

    finish(engine.url.render_as_string(hide_password=False))

    again, once = ("done", 2), ("done", 1)
    assert found(engine) == {**dict.fromkeys("abcde", again), **dict.fromkeys("fg", once)}


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
def test_a_job_that_kills_its_worker_does_so_alone_from_its_third_attempt_on(
    engine: Engine,
) -> None:
    with Session(engine) as session:
        add_tasks(session, *"ab", "poison", *"cd")
    ends: list[int | None] = []

    def others_are_done() -> bool:
        with Victim(engine.url, finish) as worker:
            worker.process.join(60)
            ends.append(worker.process.exitcode)
        left = [status for name, (status, _) in found(engine).items() if name != "poison"]
        return set(left) == {"done"}

    until(others_are_done, 60)

    # In two batches; then it comes before some of the others, which are alone, too.
    assert 3 <= len(ends) <= 15
    assert set(ends) == {-signal.SIGKILL}


def book(url: str, pipe: Connection | None = None, die_at: str = "") -> None:
    """Book invoices in batches until the queue is empty.

    Args:
        pipe: tell by it that work has begun.
        die_at: the beginning of a statement after a first entry, before which the process dies.
    """
    engine, queue = make_engine(url), JobQueue(Invoice, **QUEUE)
    begun = threading.Event()

    def watch(connection: Any, cursor: Any = None, statement: str = "COMMIT", *_: Any) -> None:
        if begun.is_set() and die_at and statement.startswith(die_at):
            os.kill(os.getpid(), signal.SIGKILL)
        if statement.startswith("INSERT INTO ledger_entry"):
            begun.set()

    event.listen(engine, "before_cursor_execute", watch)
    event.listen(engine, "commit", watch)

    @queue.handler(batch=7, transactional=True)
    def handle(session: Session, invoices: list[Invoice]) -> None:
        if pipe is not None:
            pipe.send("begun")
        for invoice in invoices:
            session.add(Entry(name=invoice.name))
            session.flush()
            time.sleep(0.003)

    run(engine, queue, concurrency=1 if die_at else 2, drain=True)


def die_while_booking(url: str, die_at: str, pipe: Connection) -> None:
    book(url, die_at=die_at)


def test_the_effects_of_transactional_batches_are_there_once_whenever_workers_are_killed(
    engine: Engine,
) -> None:
    ledger.Base.metadata.create_all(engine)
    names = [f"{number:03}" for number in range(300)]
    with Session(engine) as session, session.begin():
        session.add_all([Invoice(name=name) for name in names])
    dice = random.Random(7)

    for statement in ("RELEASE", "UPDATE ledger_invoice", "COMMIT"):
        with Victim(engine.url, die_while_booking, statement) as victim:
            victim.process.join(60)
            assert victim.process.exitcode == -signal.SIGKILL
    for _ in range(4):
        with Victim(engine.url, book) as victim:
            victim.hears()
            time.sleep(dice.uniform(0, LONGEST))
    with Session(engine) as session:
        left = session.scalars(select(Invoice.status)).all()
    assert {"unclaimed", "claimed"} & set(left)  # nobody was late
    book(engine.url.render_as_string(hide_password=False))

    with Session(engine) as session:
        assert sorted(session.scalars(select(Entry.name))) == names
        assert set(session.scalars(select(Invoice.status))) == {"done"}
        assert max(session.scalars(select(Invoice.attempts))) > 1
