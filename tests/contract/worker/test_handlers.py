"""Handlers that belong to their queue: what they get, and what they may return."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.worker import Done, JobContext, Retry, Worker, job_context
from tests.contract.worker.support import states, work
from tests.models import (
    Account,
    Email,
    Letter,
    Render,
    Task,
    add_emails,
    add_renders,
    add_tasks,
)

SOON = timedelta(milliseconds=20)


def test_a_worker_calls_the_handlers_of_several_queues(engine: Engine, session: Session) -> None:
    emails, tasks = JobQueue(Email), JobQueue(Task)
    add_emails(session, "a")
    add_tasks(session, "b")
    handled: list[str] = []

    @emails.handler
    def send(email: Email) -> None:
        handled.append(email.recipient)

    @tasks.handler
    def do(task: Task) -> None:
        handled.append(task.name)

    worker: Worker[Any] = Worker(engine, [emails, tasks], drain=True, poll=SOON)
    worker.run()

    assert handled == ["a", "b"]
    assert session.scalars(select(Email.status)).all() == ["done"]
    assert session.scalars(select(Task.status)).all() == ["done"]


def test_a_transactional_handler_may_move_its_job_on(engine: Engine, session: Session) -> None:
    add_renders(session, 1)
    queue = JobQueue(Render)

    @queue.handler(transactional=True)
    def run(session: Session, render: Render) -> None:
        render.status = "running"

    Worker(engine, queue, drain=True, poll=SOON).run()

    assert session.scalars(select(Render.status)).all() == ["done"]


def test_own_columns_that_handlers_return_are_written_with_the_finishes(
    engine: Engine, session: Session
) -> None:
    first, second, third = add_renders(session, 3)

    def run(render: Render) -> Done | None:
        return Done({Render.frames: render.id}) if render.id != third.id else Done()

    work(engine, JobQueue(Render), run, limit=3)

    found = session.execute(select(Render.status, Render.frames).order_by(Render.id))
    assert found.all() == [("done", first.id), ("done", second.id), ("done", None)]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Done({Render.status: "x"}), "ArgumentError: complete() writes Render.status itself"),
        (Done({Render.frames: object()}), "the finish was refused"),
        (Done({Render.frames: 10**30}), "the finish was refused"),
        (Done(then="x"), "ArgumentError: Done(then='x') names a branch"),
        (Done(7), "ArgumentError: values= takes"),  # type: ignore[arg-type]  # the mistake
    ],
    ids=["status", "object", "range", "branch", "number"],
)
def test_bad_values_fail_the_attempt_alone(
    engine: Engine, session: Session, bad: Done, error: str
) -> None:
    first = add_renders(session, 2)[0]
    session.execute(update(Render).values(max_attempts=1))
    session.commit()

    def run(render: Render) -> Done:
        return bad if render.id == first.id else Done({Render.frames: 1})

    work(engine, JobQueue(Render), run, limit=2)

    found = session.execute(select(Render.status, Render.frames).order_by(Render.id))
    assert found.all() == [("failed", None), ("done", 1)]
    (told, _) = session.scalars(select(Render.last_error).order_by(Render.id))
    assert told is not None
    assert told.startswith(error)


def test_values_for_a_row_that_the_worker_deletes_fail_the_attempt_alone(
    engine: Engine, session: Session
) -> None:
    first = add_renders(session, 2)[0]
    session.execute(update(Render).values(max_attempts=1))
    session.commit()

    def run(render: Render) -> Done | None:
        return Done({Render.frames: 1}) if render.id == first.id else None

    work(engine, JobQueue(Render), run, limit=2, delete=True)

    (told,) = session.execute(select(Render.status, Render.last_error)).all()
    assert told.status == "failed"
    assert "keep the rows by delete=False" in told.last_error


def test_a_queue_has_one_handler(engine: Engine) -> None:
    queue = JobQueue(Email)

    assert queue.handler(print) is print
    with pytest.raises(ArgumentError, match="has a handler already"):
        AsyncJobQueue(queue).handler(repr)
    with pytest.raises(ArgumentError, match="has a handler already"):
        Worker(engine, queue, repr)  # type: ignore[arg-type]  # returns a str


class Sender:
    """A handler that is an object."""

    async def __call__(self, email: Email) -> None: ...

    async def send(self, email: Email) -> None: ...


async def send_by(email: Email, mailer: str) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [Sender(), Sender().send, partial(Sender()), partial(send_by, mailer="m"), AsyncMock()],
)
def test_a_handler_that_has_to_be_awaited_is_refused_before_it_costs_an_attempt(
    engine: Engine, handler: Any
) -> None:
    with pytest.raises(ArgumentError, match="use an AsyncWorker"):
        Worker(engine, JobQueue(Email), handler)


def test_a_value_that_says_nothing_leaves_the_job_done_with_one_warning(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(session, "a", "b")

    work(engine, JobQueue(Task), lambda task: "250 OK")

    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("done", 1),
        "b": ("done", 1),
    }
    assert (
        sum("'250 OK', which a worker does not understand" in text for text in caplog.messages) == 1
    )


async def awaited(task: Task) -> None: ...


def yielding(task: Task) -> Iterator[None]:
    yield


async def yielding_in_a_loop(task: Task) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("handler", [awaited, yielding, yielding_in_a_loop])
def test_a_handler_whose_work_has_never_run_has_failed(
    engine: Engine, session: Session, handler: Callable[[Task], Any]
) -> None:
    add_tasks(session, "a", max_attempts=1)

    work(engine, JobQueue(Task), lambda task: handler(task))

    status, _, error = states(session)["a"]
    assert status == "failed"
    assert "its work has not run" in str(error)


@pytest.mark.parametrize("raises", [False, True])
def test_changes_of_a_detached_job_are_logged_with_the_way_out(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture, raises: bool
) -> None:
    job, _ = add_tasks(session, "a", "b", max_attempts=1)

    def handler(task: Task) -> None:
        if task.name == "a":
            task.name = "changed"
            if raises:
                raise OSError("no route")

    work(engine, JobQueue(Task), handler, limit=2)

    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "has set name of Task" in error.getMessage()
    assert "transactional=True" in error.getMessage()
    assert (vars(error)["job_key"], vars(error)["attempt"]) == ((job.id,), 1)


def test_a_handler_knows_its_attempt_and_whether_to_stop(engine: Engine, session: Session) -> None:
    add_tasks(session, "a")
    seen: list[JobContext] = []

    def handler(task: Task) -> Retry | None:
        seen.append(job_context())
        if len(seen) < 2:
            return Retry(SOON)
        assert not seen[-1].asked_to_stop
        worker.stop()
        return None

    worker = Worker(engine, JobQueue(Task), handler, owner="me", poll=SOON)
    worker.run()

    assert [(context.attempt, context.owner) for context in seen] == [(1, "me"), (2, "me")]
    assert seen[-1].asked_to_stop
    with pytest.raises(ArgumentError, match=r"call job_context\(\) in a handler"):
        job_context()


def test_a_changed_relationship_of_a_detached_job_is_logged(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.add(Letter())
    session.commit()

    def handle(letter: Letter) -> None:
        letter.account = Account(name="a")

    work(engine, JobQueue(Letter), handle)

    assert "has set account of Letter" in caplog.text


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), timedelta(days=4000)])
def test_a_retry_with_a_delay_that_cannot_be_fails_the_attempt_alone(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture, delay: timedelta
) -> None:
    add_tasks(session, "a", max_attempts=1)

    work(engine, JobQueue(Task), lambda task: Retry(delay))

    status, _, error = states(session)["a"]
    assert status == "failed"
    assert "takes a timedelta from zero to ten years" in str(error)
    assert "refused" not in caplog.text
