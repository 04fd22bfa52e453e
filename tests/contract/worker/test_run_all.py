"""run_all: what is due is handled inside of a test's own transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, inspect, select
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.testing import run_all
from sa_jobqueue.worker import Cancel, Failed, Retry, job_context
from tests.contract.worker.ledger import Base, Entry, Invoice
from tests.models import Email, Task
from tests.support import with_empty_tables

#: Where the database cannot matter.
pytestmark = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """A transaction that is rolled back after the test, as applications' tests have it."""
    Base.metadata.create_all(engine)
    with_empty_tables(engine, Base.metadata)
    with engine.connect() as connection:
        transaction = connection.begin()
        yield connection
        transaction.rollback()


@pytest.fixture
def inside(connection: Connection) -> Iterator[Session]:
    """The test's session in that transaction."""
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        yield session


def test_what_is_due_is_handled_and_nothing_is_committed(inside: Session, engine: Engine) -> None:
    inside.add_all([Task(name="a"), Task(name="b")])
    queue = JobQueue(Task)
    seen: list[tuple[str, int | None]] = []

    @queue.handler
    def handle(task: Task) -> None:
        assert inspect(task).detached
        seen.append((task.name, job_context().attempt))

    handled = run_all(inside, queue)

    assert seen == [("a", 1), ("b", 1)]
    assert [(done.job.name, done.outcome) for done in handled] == [("a", None), ("b", None)]
    assert set(inside.scalars(select(Task.status))) == {"done"}
    if engine.dialect.name != "sqlite":  # there it would wait for the writer
        with Session(engine) as outside:
            assert outside.scalars(select(Task)).all() == []


def test_an_exception_reaches_the_test_after_its_attempt_has_failed(inside: Session) -> None:
    inside.add(Task(name="a"))
    queue = JobQueue(Task)

    @queue.handler
    def handle(task: Task) -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        run_all(inside, queue)

    task = inside.scalars(select(Task)).one()
    assert (task.status, task.attempts, task.last_error) == ("unclaimed", 1, "OSError: no route")


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3)])
def test_the_jobs_after_an_exception_are_not_claimed(inside: Session, error: BaseException) -> None:
    inside.add_all([Task(name=name, max_attempts=2) for name in "abc"])
    queue = JobQueue(Task)
    seen: list[tuple[str, int | None]] = []

    @queue.handler
    def handle(task: Task) -> Retry | None:
        seen.append((task.name, job_context().attempt))
        if seen == [("a", 1), ("b", 1)]:
            raise error
        return Retry(timedelta(0)) if len(seen) == 1 else None

    with pytest.raises(type(error)):
        run_all(inside, queue)

    states = {task.name: (task.status, task.attempts) for task in inside.scalars(select(Task))}
    assert states == {"a": ("unclaimed", 1), "b": ("unclaimed", 1), "c": ("unclaimed", 0)}
    run_all(inside, queue)
    assert ("c", 1) in seen


def test_a_handler_has_the_time_of_its_timeout(
    inside: Session, caplog: pytest.LogCaptureFixture
) -> None:
    inside.add(Task(name="a"))
    queue = JobQueue(Task)
    left: list[timedelta | None] = []

    @queue.handler(timeout=timedelta(minutes=5))
    def handle(task: Task) -> None:
        left.append(job_context().time_left)
        raise OSError("no route")

    run_all(inside, queue, raising=False)

    assert left[0] is not None
    assert timedelta(minutes=4) < left[0] <= timedelta(minutes=5)
    durations = [vars(record)["duration"] for record in caplog.records if "job_key" in vars(record)]
    assert [0 <= duration < 60 for duration in durations] == [True]


def test_without_raising_the_other_jobs_are_handled(inside: Session) -> None:
    inside.add_all([Task(name=name, max_attempts=1) for name in "abc"])
    queue = JobQueue(Task)

    @queue.handler
    def handle(task: Task) -> Cancel | None:
        if task.name == "a":
            raise OSError("no route")
        return Cancel("too late") if task.name == "b" else None

    outcomes = [done.outcome for done in run_all(inside, queue, raising=False)]

    assert isinstance(outcomes[0], Failed)
    assert outcomes[1:] == [Cancel("too late"), None]
    assert list(inside.scalars(select(Task.status).order_by(Task.name))) == [
        "failed",
        "cancelled",
        "done",
    ]


def test_a_job_that_is_tried_again_at_once_waits_for_the_next_call(inside: Session) -> None:
    inside.add(Task(name="a"))
    queue = JobQueue(Task)
    attempts: list[int | None] = []

    @queue.handler
    def handle(task: Task) -> Retry | None:
        attempts.append(job_context().attempt)
        return Retry(timedelta(0)) if len(attempts) < 3 else None

    for expected in ([1], [1, 2], [1, 2, 3], [1, 2, 3]):
        run_all(inside, queue)
        assert attempts == expected


def test_jobs_that_handlers_enqueue_are_handled_too(inside: Session) -> None:
    add_invoices_unflushed(inside, "a")
    invoices, tasks = JobQueue(Invoice), JobQueue(Task)
    done: list[str] = []

    @invoices.handler(transactional=True)
    def book(own: Session, invoice: Invoice) -> None:
        own.add(Entry(name=invoice.name))
        own.add(Task(name=f"remind {invoice.name}"))

    @tasks.handler
    def remind(task: Task) -> None:
        done.append(task.name)

    queues: list[JobQueue[Any]] = [invoices, tasks]
    run_all(inside, queues)

    assert done == ["remind a"]
    assert inside.scalars(select(Entry.name)).all() == ["a"]


def add_invoices_unflushed(session: Session, *names: str) -> None:
    session.add_all([Invoice(name=name) for name in names])


def test_effects_of_a_transactional_handler_that_raises_are_rolled_back(inside: Session) -> None:
    add_invoices_unflushed(inside, "a")
    queue = JobQueue(Invoice)

    @queue.handler(transactional=True)
    def book(own: Session, invoice: Invoice) -> None:
        own.add(Entry(name=invoice.name))
        own.flush()
        raise OSError("no route")

    run_all(inside, queue, raising=False)

    assert inside.scalars(select(Entry)).all() == []
    assert inside.scalars(select(Invoice.last_error)).all() == ["OSError: no route"]


def test_a_queue_without_a_handler_is_refused(inside: Session) -> None:
    with pytest.raises(ArgumentError, match="has no handler"):
        run_all(inside, JobQueue(Email))


def test_an_awaited_handler_is_refused(inside: Session) -> None:
    queue = JobQueue(Email)

    @queue.handler
    async def send(email: Email) -> None: ...

    with pytest.raises(ArgumentError, match="has to be awaited"):
        run_all(inside, queue)
