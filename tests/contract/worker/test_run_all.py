"""run_all: what is due is handled inside of a test's own transaction, of a Session or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.testing import run_all
from sa_jobqueue.testing.asyncio import run_all as run_all_awaited
from sa_jobqueue.worker import Cancel, Failed, Retry, job_context
from tests.contract.worker.driver import KINDS, Workers
from tests.models import Email, Task

#: Where the database cannot matter.
pytestmark = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


class Inside:
    """A transaction of a test; what is done in it is done by a session of either kind.

    Attributes:
        do: calls a function with the session.
        run_all: the function of this kind, for this session.
    """

    def __init__(
        self,
        workers: Workers,
        do: Callable[[Callable[[Session], Any]], Any],
        run_all: Callable[..., Any],
    ) -> None:
        self.workers, self.do, self.run_all = workers, do, run_all

    def add(self, *names: str, **columns: Any) -> None:
        """Add tasks, which are not flushed."""
        self.do(lambda own: own.add_all([Task(name=name, **columns) for name in names]))

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return status, attempts and last_error of each task, as the transaction sees them."""
        query = select(Task.name, Task.status, Task.attempts, Task.last_error)
        return {row[0]: tuple(row[1:]) for row in self.do(lambda own: own.execute(query).all())}


@pytest.fixture(params=KINDS)
def inside(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Inside]:
    """A transaction that is rolled back after the test, as applications' tests have it."""
    workers = Workers(request.param, engine)
    with (in_loop if workers.awaits else in_thread)(workers) as inside:
        yield inside
    assert workers.rows() == {}


JOINED: Any = {"join_transaction_mode": "create_savepoint", "expire_on_commit": False}


@contextmanager
def in_thread(workers: Workers) -> Iterator[Inside]:
    with workers.engine.connect() as connection, Session(connection, **JOINED) as own:
        transaction = connection.begin()
        yield Inside(
            workers, lambda work: work(own), lambda *args, **how: run_all(own, *args, **how)
        )
        transaction.rollback()


@contextmanager
def in_loop(workers: Workers) -> Iterator[Inside]:
    engine = AsyncEngine(workers.engine)
    with asyncio.Runner() as runner:
        connection = runner.run(start(engine.connect()))
        transaction = runner.run(start(connection.begin()))
        own = AsyncSession(connection, **JOINED)
        yield Inside(
            workers,
            lambda work: runner.run(own.run_sync(work)),
            lambda *args, **how: runner.run(run_all_awaited(own, *args, **how)),
        )
        for end in (transaction.rollback, own.close, connection.close, engine.dispose):
            runner.run(end())


async def start(awaited: Any) -> Any:
    return await awaited


@pytest.mark.parametrize("transactional", [False, True])
def test_what_is_due_is_handled(inside: Inside, transactional: bool) -> None:
    inside.add("a", "b")
    seen: list[tuple[str, int | None]] = []

    def handle(task: Task) -> None:
        assert inspect(task).detached
        seen.append((task.name, job_context().attempt))

    def handle_in(own: Session, task: Task) -> None:
        task.priority = 7
        own.flush()
        seen.append((task.name, job_context().attempt))

    handler = handle_in if transactional else handle
    queue = inside.workers.queue(Task, handler, transactional=transactional)
    handled = inside.run_all(queue)

    assert seen == [("a", 1), ("b", 1)]
    assert [(done.job.name, done.outcome) for done in handled] == [("a", None), ("b", None)]
    assert inside.rows() == dict.fromkeys("ab", ("done", 1, None))
    priorities = inside.do(lambda own: set(own.scalars(select(Task.priority))))
    assert (priorities == {7}) == transactional


@pytest.mark.parametrize("transactional", [False, True])
def test_batches_are_handled(inside: Inside, transactional: bool) -> None:
    """A job that is tried again in a batch waits for the next call, and the others do not."""
    inside.add(*"abc")
    batches: list[str] = []

    def handle(tasks: list[Task]) -> dict[Task, Retry]:
        batches.append("".join(task.name for task in tasks))
        return {task: Retry(timedelta(0)) for task in tasks if task.name == "b"}

    def handle_in(own: Session, tasks: list[Task]) -> dict[Task, Retry]:
        own.add(Email(recipient="noted"))
        return handle(tasks)

    handler = handle_in if transactional else handle
    queue = inside.workers.queue(Task, handler, transactional=transactional, batch=2)
    handled = inside.run_all(queue)

    assert batches[:3] == (["ab", "a", "c"] if transactional else ["ab", "c"])[:3]
    assert inside.rows()["b"] == ("unclaimed", 1, None)
    assert [done.job.name for done in handled][:3] == [*"abc"]


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3)])
def test_an_exception_fails_its_attempt_and_ends_the_call(
    inside: Inside, error: BaseException
) -> None:
    inside.add(*"abc", max_attempts=2)

    def handle(task: Task) -> Retry | None:
        inside.workers.note(task)
        if inside.workers.handled == ["a", "b"]:
            raise error
        return Retry(timedelta(0)) if task.name == "a" and task.attempts == 1 else None

    queue = inside.workers.queue(Task, handle)
    with pytest.raises(type(error)):
        inside.run_all(queue)

    raised = f"{type(error).__name__}: {error}"
    assert inside.rows() == {
        "a": ("unclaimed", 1, None),
        "b": ("unclaimed", 1, raised),
        "c": ("unclaimed", 0, None),
    }
    inside.run_all(queue)
    assert "c" in inside.workers.handled


def test_without_raising_the_other_jobs_are_handled(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    inside.add(*"abc", max_attempts=1)
    left: list[Any] = []

    def handle(task: Task) -> Cancel | None:
        left.append(job_context().time_left)
        if task.name == "a":
            raise OSError("no route")
        return Cancel("too late") if task.name == "b" else None

    queue = inside.workers.queue(Task, handle, timeout=timedelta(minutes=5))
    outcomes = [done.outcome for done in inside.run_all(queue, raising=False)]

    assert isinstance(outcomes[0], Failed)
    assert outcomes[1:] == [Cancel("too late"), None]
    assert [row[0] for row in inside.rows().values()] == ["failed", "cancelled", "done"]
    assert all(timedelta(minutes=4) < time <= timedelta(minutes=5) for time in left)
    durations = [vars(record)["duration"] for record in caplog.records if "job_key" in vars(record)]
    assert [0 <= duration < 60 for duration in durations] == [True]


def test_a_job_that_is_tried_again_at_once_waits_for_the_next_call(inside: Inside) -> None:
    inside.add("a")
    attempts: list[int | None] = []

    def handle(task: Task) -> Retry | None:
        attempts.append(job_context().attempt)
        return Retry(timedelta(0)) if len(attempts) < 3 else None

    queue = inside.workers.queue(Task, handle)
    for expected in ([1], [1, 2], [1, 2, 3], [1, 2, 3]):
        inside.run_all(queue)
        assert attempts == expected


def test_jobs_that_handlers_enqueue_are_handled_too_unless_they_are_rolled_back(
    inside: Inside,
) -> None:
    inside.add("first", "bad")

    def order(own: Session, task: Task) -> None:
        own.add(Email(recipient=f"{task.name} customer"))
        own.flush()
        if task.name == "bad":
            raise OSError("no route")

    def send(email: Email) -> None:
        inside.workers.handled.append(email.recipient)

    tasks = inside.workers.queue(Task, order, transactional=True)
    inside.run_all([tasks, inside.workers.queue(Email, send)], raising=False)

    assert inside.workers.handled == ["first customer"]
    assert inside.rows()["bad"] == ("unclaimed", 1, "OSError: no route")


def test_a_queue_without_a_handler_or_with_an_awaited_one_is_refused(session: Session) -> None:
    queue = JobQueue(Email)

    with pytest.raises(ArgumentError, match="has no handler"):
        run_all(session, queue)

    @queue.handler
    async def send(email: Email) -> None: ...

    with pytest.raises(ArgumentError, match="has to be awaited"):
        run_all(session, queue)
