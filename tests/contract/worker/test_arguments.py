"""What a Worker and an AsyncWorker cannot use is refused at once, with the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import ArgumentError, JobQueue, claim, fail, prune, reap
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.worker import Worker, WorkerOptions
from sa_jobqueue.workflow import Workflow
from tests.models import Email, Task

SECOND = timedelta(seconds=1)


async def nothing(job: Any) -> None: ...


Make = Callable[..., Any]


@pytest.fixture(params=["Worker", "AsyncWorker"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a worker with these options; nothing connects."""
    engine: Any
    handler: Any
    if request.param == "Worker":
        engine, handler = create_engine("sqlite://"), of_one
    else:
        engine, handler = create_async_engine("sqlite+aiosqlite://"), nothing

    def make(queue: Any = None, **options: Any) -> Any:
        queue = JobQueue(Email) if queue is None else queue
        kind: Any = Worker if request.param == "Worker" else AsyncWorker
        if isinstance(queue, list):
            for each in queue:
                each.handler(handler)
            return kind(engine, queue, **options)
        return kind(engine, queue, handler, **options)

    return make


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency is a number"),
        ({"concurrency": 4, "limit": 3}, r"at least concurrency \(4\)"),
        ({"limit": 0}, "limit is a number"),
        ({"max_runtime": timedelta(0)}, "max_runtime"),
        ({"reap_every": timedelta(0)}, "reap_every"),
        ({"queue": JobQueue(Email, strategy="held")}, "a worker commits between claim and finish"),
        ({"queue": JobQueue(Email, strategy="advisory")}, "advisory"),
    ],
)
def test_options_that_cannot_work_are_refused(
    make: Make, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        make(**options)


@pytest.mark.parametrize("criteria", [[], [Email.recipient == "a"]])
def test_two_queues_with_the_same_jobs_are_refused(make: Make, criteria: list[Any]) -> None:
    queues = [JobQueue(Email, *criteria), JobQueue(Task), JobQueue(Email, *criteria)]

    with pytest.raises(ArgumentError, match=r"claim the same jobs.*criteria of its own"):
        make(queues)


def test_queues_are_any_iterable_and_may_share_a_class(make: Make) -> None:
    one, other = (JobQueue(Email, Email.recipient == name) for name in "ab")
    make([one, other, JobQueue(Task)])
    awaited = AsyncJobQueue(JobQueue(Email))
    awaited.handler(nothing)
    for queues in ({awaited}, (each for each in [awaited]), {"mails": awaited}.values()):
        AsyncWorker(create_async_engine("sqlite+aiosqlite://"), queues)


class Sender:
    """A handler that is an object."""

    async def __call__(self, email: Email) -> None: ...

    async def send(self, email: Email) -> None: ...


async def send_by(email: Email, mailer: str) -> None: ...


def plain(task: Email, mailer: str = "") -> None: ...


@wraps(Sender.send)
def decorated(email: Email) -> Any:
    return Sender().send(email)


AWAITED = [
    Sender(),
    Sender().send,
    partial(Sender()),
    partial(send_by, mailer="m"),
    AsyncMock(return_value=None),
]


@pytest.mark.parametrize("handler", AWAITED)
def test_a_handler_that_has_to_be_awaited_is_for_an_async_worker(handler: Any) -> None:
    AsyncWorker(create_async_engine("sqlite+aiosqlite://"), JobQueue(Email), handler)
    AsyncWorker(create_async_engine("sqlite+aiosqlite://"), JobQueue(Email), decorated)
    with pytest.raises(ArgumentError, match="use an AsyncWorker"):
        Worker(create_engine("sqlite://"), JobQueue(Email), handler)


@pytest.mark.parametrize("handler", [plain, partial(plain, mailer="m"), lambda task: None])
def test_a_plain_function_is_refused_by_an_async_worker(handler: Any) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    transactional = JobQueue(Email)
    transactional.handler(transactional=True)(lambda session, email: None)

    with pytest.raises(ArgumentError, match="make it async def, or use a Worker"):
        AsyncWorker(engine, JobQueue(Email), handler)
    with pytest.raises(ArgumentError, match="make it async def"):
        AsyncWorker(engine, transactional)


def test_the_arguments_of_both_workers_are_the_same() -> None:
    plain, awaited = Worker.__init__.__annotations__, AsyncWorker.__init__.__annotations__

    own = {"engine", "queue", "handler", "on_claim", "on_outcome", "return"}
    shared = {name: kind for name, kind in plain.items() if name not in own}
    options = {name: ref.__forward_arg__ for name, ref in WorkerOptions.__annotations__.items()}
    assert options == shared
    assert awaited.keys() == {*own, "options"}
    assert awaited["options"] == "Unpack[WorkerOptions]"
    with pytest.raises(TypeError, match="unexpected keyword argument 'limmit'"):
        AsyncWorker(create_async_engine("sqlite+aiosqlite://"), JobQueue(Email), nothing, limmit=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["grace", "poll", "interval", "max_runtime", "reap_every"])
@pytest.mark.parametrize("value", [5, 0.5, "5", -SECOND])
def test_a_duration_that_is_none_is_refused(make: Make, name: str, value: Any) -> None:
    with pytest.raises(
        ArgumentError, match=f"{name}= takes a timedelta .*{re.escape(repr(value))}"
    ):
        make(**{name: value})


@pytest.mark.parametrize("name", ["grace", "poll", "interval"])
def test_a_duration_that_has_to_be_there_is_not_none(make: Make, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}= takes a timedelta"):
        make(**{name: None})


def test_a_number_is_answered_by_the_timedelta_to_write(make: Make) -> None:
    with pytest.raises(ArgumentError, match=re.escape("not 5: write timedelta(seconds=5)")):
        make(grace=5)
    with pytest.raises(ArgumentError, match=re.escape("write timedelta(seconds=30)")):
        JobQueue(Email).handler(timeout=30)  # type: ignore[call-overload]  # a mistake


@pytest.mark.parametrize("timeout", [timedelta(0), 5])
def test_a_timeout_is_a_duration_longer_than_zero(timeout: Any) -> None:
    with pytest.raises(ArgumentError, match="timeout= takes a timedelta longer than zero"):
        JobQueue(Email).handler(timeout=timeout)


@pytest.mark.parametrize("lease", [5, "5", timedelta(0), -SECOND])
def test_the_lease_of_a_queue_is_a_duration_longer_than_zero(lease: Any) -> None:
    with pytest.raises(ArgumentError, match="lease= takes a timedelta longer than zero"):
        JobQueue(Email, lease=lease)


def test_zero_is_a_grace_and_an_interval_and_no_poll(make: Make) -> None:
    make(grace=timedelta(0), interval=timedelta(0))

    with pytest.raises(ArgumentError, match="poll= takes a timedelta longer than zero"):
        make(poll=timedelta(0))


@pytest.mark.parametrize("value", [1, "yes", "False"])
def test_delete_is_a_bool_or_none(make: Make, value: Any) -> None:
    with pytest.raises(
        ArgumentError, match="delete= takes True, False, or None for what the model"
    ):
        make(delete=value)


def of_two(session: Any, job: Any) -> None: ...


def of_one(invoice: Any) -> None: ...


def of_three(session: Any, job: Any, mailer: Any) -> None: ...


def keyword_only(job: Any, *, mailer: Any) -> None: ...


def injecting(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(job: Any) -> Any:
        return function(None, job)

    return call


@pytest.mark.parametrize("handler", ["x", 5, None])
def test_what_is_no_function_is_no_handler(handler: Any) -> None:
    with pytest.raises(ArgumentError, match="a handler is a function, not"):
        JobQueue(Email).handler()(handler)
    if handler is not None:
        with pytest.raises(ArgumentError, match="a handler is a function, not"):
            JobQueue(Email).handler(handler)


@pytest.mark.parametrize(
    ("handler", "transactional", "said"),
    [
        (
            of_one,
            True,
            "and a worker calls it with (session, job): too many",
        ),
        (of_three, True, "missing a required argument: 'mailer'"),
        (of_two, False, "calls it with (job)"),
        (keyword_only, False, "argument: 'mailer'"),
        (partial(of_two, 1, 2), False, "too many positional arguments"),
    ],
)
def test_a_handler_with_other_arguments_is_refused_when_it_is_declared(
    handler: Any, transactional: bool, said: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        JobQueue(Email).handler(transactional=transactional)(handler)  # type: ignore[call-overload]  # either


def test_other_ways_to_give_a_handler_check_it_too() -> None:
    workflow = Workflow(Email, final=["sent"])

    with pytest.raises(ArgumentError, match=re.escape("calls it with (job)")):
        Worker(create_engine("sqlite://"), JobQueue(Email), of_two)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=re.escape("calls it with (job)")):
        workflow.step(ready="unclaimed", during="claimed", then="sent")(of_two)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handler", [print, dict.fromkeys, injecting(of_two), partial(of_two, 1), Mock()]
)
def test_what_can_be_called_or_has_no_signature_is_left_alone(handler: Any) -> None:
    assert JobQueue(Email).handler(handler) is handler


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (scoped_session(sessionmaker()), "give its session_factory"),
        (Session, r"make a factory of it with sessionmaker\(engine, class_=\.\.\)"),
        (Session(), "give its engine, or the sessionmaker"),
        ("sqlite://", r"make an engine of it with create_engine\(\)"),
        (create_async_engine("sqlite+aiosqlite://"), "for an AsyncEngine use AsyncWorker"),
        (sessionmaker(), "bind it to an Engine"),
        (sessionmaker(create_engine("sqlite://"), autobegin=False), "without autobegin=False"),
    ],
)
def test_what_is_no_engine_is_answered_by_what_to_give(given: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Worker(given, JobQueue(Email), of_one)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (async_scoped_session(async_sessionmaker(), lambda: 1), "give its session_factory"),
        (AsyncSession, r"make a factory of it with async_sessionmaker\(engine, class_=\.\.\)"),
        (AsyncSession(), "give its engine, or the sessionmaker"),
        ("sqlite+aiosqlite://", r"make an engine of it with create_async_engine\(\)"),
        (create_engine("sqlite://"), "for a synchronous engine use Worker"),
        (async_sessionmaker(), "bind it to an Engine"),
        (
            async_sessionmaker(create_async_engine("sqlite+aiosqlite://"), autobegin=False),
            "without autobegin=False",
        ),
    ],
)
def test_what_is_no_async_engine_is_answered_by_what_to_give(given: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        AsyncWorker(given, JobQueue(Email), nothing)


def test_a_sessionmaker_on_one_connection_is_refused() -> None:
    with (
        create_engine("sqlite://").connect() as connection,
        pytest.raises(ArgumentError, match="bound to an Engine"),
    ):
        Worker(sessionmaker(connection), JobQueue(Email), of_one)


@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("age", [timedelta(days=36_501), timedelta.max])
def test_an_age_that_no_database_can_compute_is_refused(
    engine: Engine, session: Session, age: timedelta
) -> None:
    longest = timedelta(days=36_500)
    calls: list[Callable[[timedelta], Any]] = [
        lambda age: JobQueue(Email, lease=age),
        lambda age: Worker(engine, JobQueue(Email), print, max_runtime=age),
        lambda age: reap(session, Email, lease=age),
        lambda age: reap(session, Email, max_runtime=age),
        lambda age: prune(session, Email, older_than=age),
    ]

    for call in calls:
        call(longest)
        with pytest.raises(ArgumentError, match="takes at most a hundred years"):
            call(age)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("age", [5, "5", None, timedelta(seconds=-1)])
def test_jobs_are_pruned_by_an_age_from_zero(session: Session, age: Any) -> None:
    with pytest.raises(ArgumentError, match=r"older_than=.* of at least zero"):
        prune(session, Email, older_than=age)


@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("delay", [timedelta(days=3651), timedelta(seconds=-1)])
def test_a_delay_of_a_failed_job_is_from_zero_to_ten_years(
    session: Session, delay: timedelta
) -> None:
    session.add(Task(name="wash"))
    session.flush()
    (task,) = claim(session, Task, owner="w")

    with pytest.raises(ArgumentError, match="retry_in must be a timedelta from zero to ten years"):
        fail(session, task, retry_in=delay)

    fail(session, task, retry_in=timedelta(days=3650))
    session.flush()
    assert task.status == "unclaimed"
