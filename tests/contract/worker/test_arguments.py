"""What a Worker and an AsyncWorker cannot use is refused at once, with the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import ArgumentError, JobQueue, claim, fail, prune, reap
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import Workflow
from tests.models import Email, Task, add_tasks

SECOND = timedelta(seconds=1)
ENGINE = create_engine("sqlite://")
AWAITED = create_async_engine("sqlite+aiosqlite://")

# The types refuse what these tests give.
Plain: Any = Worker
Awaiting: Any = AsyncWorker
Queue: Any = JobQueue


def of_one(job: Any) -> None: ...


async def awaited(job: Any) -> None: ...


def of_two(session: Any, job: Any) -> None: ...


def of_three(session: Any, job: Any, mailer: Any) -> None: ...


def keyword_only(job: Any, *, mailer: Any) -> None: ...


def plain(job: Any, mailer: str = "") -> None: ...


def make(kind: Any, queue: Any = None, **options: Any) -> Any:
    """Make a worker with these options; nothing connects."""
    handler, engine = (of_one, ENGINE) if kind is Worker else (awaited, AWAITED)
    return kind(engine, JobQueue(Email) if queue is None else queue, handler, **options)


# What both refuse


DURATIONS = [
    ({name: value}, f"{name}= takes a timedelta .*{re.escape(repr(value))}")
    for name in ("grace", "poll", "interval", "max_runtime", "reap_every")
    for value in (5, "5", -SECOND)
]
OPTIONS = [
    *DURATIONS,
    *(({name: None}, f"{name}= takes a timedelta") for name in ("grace", "poll", "interval")),
    ({"grace": 5}, re.escape("not 5: write timedelta(seconds=5)")),
    ({"poll": timedelta(0)}, "poll= takes a timedelta longer than zero"),
    ({"max_runtime": timedelta(0)}, "max_runtime"),
    ({"max_runtime": timedelta(days=36_501)}, "takes at most a hundred years"),
    ({"reap_every": timedelta(0)}, "reap_every"),
    ({"delete": 1}, "delete= takes True, False, or None for what the model"),
    ({"delete": "False"}, "delete= takes True, False, or None for what the model"),
    ({"concurrency": 0}, "concurrency is a number"),
    ({"concurrency": 4, "limit": 3}, r"at least concurrency \(4\)"),
    ({"limit": 0}, "limit is a number"),
    ({"queue": JobQueue(Email, strategy="held")}, "a worker commits between claim and finish"),
    ({"queue": JobQueue(Email, strategy="advisory")}, "advisory"),
]


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_options_that_cannot_work_are_refused(
    kind: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        make(kind, **options)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_zero_is_a_grace_and_an_interval_and_a_hundred_years_are_a_max_runtime(kind: Any) -> None:
    make(kind, grace=timedelta(0), interval=timedelta(0), max_runtime=timedelta(days=36_500))


@pytest.mark.parametrize("criteria", [[], [Email.recipient == "a"]])
def test_two_queues_with_the_same_jobs_are_refused(criteria: list[Any]) -> None:
    queues = [Queue(Email, *criteria), Queue(Task), Queue(Email, *criteria)]
    for queue in queues:
        queue.handler(of_one)

    with pytest.raises(ArgumentError, match=r"claim the same jobs.*criteria of its own"):
        Worker(ENGINE, queues)


def test_queues_are_any_iterable_and_may_share_a_class() -> None:
    queues = [AsyncJobQueue(JobQueue(Email, Email.recipient == name)) for name in "ab"]
    for queue in queues:
        queue.handler(awaited)

    for given in (set(queues), (each for each in queues), dict(enumerate(queues)).values()):
        AsyncWorker(AWAITED, given)


# Engines and sessions


ENGINES = [
    (Worker, scoped_session(sessionmaker()), "the sessionmaker of yours"),
    (Worker, Session(), "the sessionmaker of yours"),
    (Worker, "sqlite://", "give it the engine"),
    (Worker, sessionmaker(), "bind it to an Engine"),
    (Worker, sessionmaker(ENGINE.connect()), "bound to an Engine"),
    (Worker, AWAITED, r"needs an Engine, .* AsyncWorker$"),
    (AsyncWorker, AsyncSession(), "the async_sessionmaker of yours"),
    (AsyncWorker, "sqlite+aiosqlite://", "give it the engine"),
    (AsyncWorker, async_sessionmaker(), "bind it to an Engine"),
    (AsyncWorker, ENGINE, "needs an AsyncEngine, .* Worker$"),
]


@pytest.mark.parametrize(("kind", "given", "said"), ENGINES)
def test_what_is_no_engine_is_answered_by_what_to_give(kind: Any, given: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        kind(given, JobQueue(Email), of_one if kind is Worker else awaited)


# Handlers


class Sender:
    """A handler that is an object."""

    async def __call__(self, email: Email) -> None: ...

    async def send(self, email: Email) -> None: ...


async def send_by(email: Email, mailer: str) -> None: ...


@wraps(Sender.send)
def decorated(email: Email) -> Any:
    return Sender().send(email)


def injecting(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(job: Any) -> Any:
        return function(None, job)

    return call


AWAITED_HANDLERS = [
    *(Sender(), Sender().send, partial(Sender()), AsyncMock(return_value=None)),
    partial(send_by, mailer="m"),
]


@pytest.mark.parametrize("handler", AWAITED_HANDLERS)
def test_a_handler_that_has_to_be_awaited_is_for_an_async_worker(handler: Any) -> None:
    AsyncWorker(AWAITED, JobQueue(Email), handler)
    AsyncWorker(AWAITED, JobQueue(Email), decorated)
    with pytest.raises(ArgumentError, match="use an AsyncWorker"):
        Plain(ENGINE, JobQueue(Email), handler)


def transactional(handler: Any) -> Any:
    """Declare a transactional handler, and give its queue to an AsyncWorker."""
    queue = JobQueue(Email)
    queue.handler(transactional=True)(handler)
    return AsyncWorker(AWAITED, queue)


def step(handler: Any) -> Any:
    workflow = Workflow(Email, final=["sent"])
    return workflow.step(ready="unclaimed", during="claimed", then="sent")(handler)


HANDLERS: list[tuple[Callable[[], Any], str]] = [
    *(
        (lambda given=given: Awaiting(AWAITED, Queue(Email), given), "make it async def, or use a")
        for given in (plain, partial(plain, mailer="m"))
    ),
    (lambda: transactional(of_two), "make it async def"),
    (lambda: transactional(of_one), "and a worker calls it with (session, job): too many"),
    (lambda: transactional(of_three), "missing a required argument: 'mailer'"),
    (lambda: Queue(Email).handler(of_two), "calls it with (job)"),
    (lambda: Queue(Email).handler(keyword_only), "argument: 'mailer'"),
    (lambda: Queue(Email).handler(partial(of_two, 1, 2)), "too many positional arguments"),
    (lambda: Plain(ENGINE, Queue(Email), of_two), "calls it with (job)"),
    (lambda: step(of_two), "calls it with (job)"),
    *(
        (lambda given=given: Queue(Email).handler()(given), "a handler is a function, not")
        for given in ("x", 5, None)
    ),
    (lambda: Queue(Email).handler(timeout=30), "write timedelta(seconds=30)"),
    (
        lambda: Queue(Email).handler(timeout=timedelta(0)),
        "timeout= takes a timedelta longer than zero",
    ),
    *(
        (
            lambda lease=lease: Queue(Email, lease=lease),
            "lease= takes a timedelta longer than zero",
        )
        for lease in (5, "5", timedelta(0), -SECOND)
    ),
    (lambda: Queue(Email, lease=timedelta.max), "takes at most a hundred years"),
]


@pytest.mark.parametrize(("call", "said"), HANDLERS)
def test_handlers_and_queues_that_cannot_work_are_refused_when_they_are_declared(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        call()


@pytest.mark.parametrize(
    "handler", [print, dict.fromkeys, injecting(of_two), partial(of_two, 1), Mock()]
)
def test_what_can_be_called_or_has_no_signature_is_left_alone(handler: Any) -> None:
    assert Queue(Email).handler(handler) is handler


# Ages and delays that a database computes with


AGES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (reap, {"lease": timedelta(days=36_501)}, "a hundred years"),
    (reap, {"max_runtime": timedelta.max}, "a hundred years"),
    (prune, {"older_than": timedelta.max}, "a hundred years"),
    *((prune, {"older_than": age}, "of at least zero") for age in (5, "5", None, -SECOND)),
    (fail, {"retry_in": timedelta(days=3651)}, "from zero to ten years"),
    (fail, {"retry_in": -SECOND}, "from zero to ten years"),
]


@pytest.mark.parametrize(("verb", "age", "said"), AGES)
def test_an_age_that_no_database_can_compute_is_refused(
    verb: Callable[..., Any], age: dict[str, Any], said: str
) -> None:
    with Session(ENGINE) as session, pytest.raises(ArgumentError, match=said):
        verb(session, [] if verb is fail else Email, **age)


def test_the_longest_ages_and_delays_are_computed(session: Session) -> None:
    longest = timedelta(days=36_500)
    (task,) = add_tasks(session, "wash")
    claim(session, Task, owner="w")

    fail(session, task, retry_in=timedelta(days=3650))
    reap(session, Task, lease=longest)
    reap(session, Task, max_runtime=longest)
    prune(session, Task, older_than=longest)
    session.flush()

    assert task.status == "unclaimed"
