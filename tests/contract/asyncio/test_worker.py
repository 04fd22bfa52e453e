"""The worker in an event loop, by every async driver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial, wraps
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from sqlalchemy import URL, AsyncAdaptedQueuePool, Engine, event, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import ArgumentError, Claim, JobQueue
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.worker import (
    Cancel,
    Done,
    Outcome,
    Retry,
    Worker,
    WorkerOptions,
    job_context,
)
from tests.contract.asyncio.support import (
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
)
from tests.contract.asyncio.worker_support import draining, nothing, states, statuses
from tests.contract.worker.support import checkouts_counted
from tests.models import Account, Email, Letter, Task, add_emails, add_tasks

SOON = timedelta(milliseconds=20)


# Jobs


@in_event_loop
async def test_a_drained_queue_is_finished(async_engine: AsyncEngine, session: Session) -> None:
    add_emails(session, *"abcde")
    handled: list[str] = []

    async def handler(email: Email) -> None:
        await asyncio.sleep(0)
        handled.append(email.recipient)

    await draining(async_engine, JobQueue(Email), handler, limit=2).run()

    assert handled == list("abcde")
    assert set(statuses(session).values()) == {"done"}


@in_event_loop
async def test_own_columns_that_a_handler_returns_are_written_with_the_finish(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a", "b")

    async def handler(email: Email) -> Done:
        return Done({Email.subject: f"to {email.recipient}"})

    await draining(async_engine, JobQueue(Email), handler, limit=2).run()

    found = session.execute(select(Email.status, Email.subject).order_by(Email.id)).all()
    assert found == [("done", "to a"), ("done", "to b")]


@in_event_loop
async def test_a_change_of_a_detached_job_is_logged(
    async_engine: AsyncEngine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")

    async def handler(email: Email) -> None:
        await asyncio.sleep(0)
        email.recipient = "changed"

    await draining(async_engine, JobQueue(Email), handler).run()

    assert statuses(session) == {"a": "done"}
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "a handler has set recipient of Email" in error.getMessage()


@in_event_loop
async def test_turns_that_follow_each_other_share_a_connection(
    engine: Engine, session: Session, db_url: URL, driver: str
) -> None:
    add_emails(session, *["a"] * 30)
    # SQLAlchemy before 2.0.38 had no pool for aiosqlite, unless it was asked for.
    pooled = make_async_engine(db_url, driver, poolclass=AsyncAdaptedQueuePool)

    with checkouts_counted(pooled.sync_engine) as count:
        await draining(pooled, JobQueue(Email), nothing, owner="w", limit=1).run()

    await pooled.dispose()
    assert count[0] < 10


@in_event_loop
async def test_a_job_ends_as_its_handler_says(async_engine: AsyncEngine, session: Session) -> None:
    add_tasks(session, "again", "bad", "never", "nonsense", max_attempts=2)

    async def handler(task: Task) -> Any:
        if task.name == "bad":
            raise ValueError("no luck")
        if task.name == "again" and task.attempts == 1:
            return Retry(in_=SOON, reason="busy")
        return {"never": Cancel("no address"), "nonsense": 5}.get(task.name)

    await draining(async_engine, AsyncJobQueue(JobQueue(Task)), handler, limit=4).run()

    found = states(session)
    assert found["again"] == ("done", 2, "busy")
    assert found["bad"] == ("failed", 2, "ValueError: no luck")
    assert found["never"] == ("cancelled", 1, "no address")
    assert found["nonsense"][:2] == ("done", 1)


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
@in_event_loop
async def test_a_handler_that_cannot_be_awaited_is_refused_with_the_way_out(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, "a", max_attempts=1)

    await draining(async_engine, JobQueue(Task), Mock(return_value=None)).run()

    assert "an AsyncWorker awaits its handlers" in str(states(session)["a"])


def plain(task: Task, mailer: str = "") -> None: ...


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE[:1])
@pytest.mark.parametrize("handler", [plain, partial(plain, mailer="m"), lambda task: None])
@in_event_loop
async def test_a_plain_function_is_refused_before_it_costs_an_attempt(
    async_engine: AsyncEngine, handler: Any
) -> None:
    with pytest.raises(ArgumentError, match="make it async def, or use a Worker"):
        AsyncWorker(async_engine, JobQueue(Task), handler)


class Sender:
    """A handler that is an object."""

    async def __call__(self, task: Task) -> None: ...

    async def send(self, task: Task) -> None: ...


@wraps(Sender.send)
def decorated(task: Task) -> Awaitable[None]:
    return Sender().send(task)


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE[:1])
@pytest.mark.parametrize(
    "handler", [Sender(), Sender().send, partial(Sender()), decorated, AsyncMock(return_value=None)]
)
@in_event_loop
async def test_whatever_can_be_awaited_is_a_handler(
    async_engine: AsyncEngine, session: Session, handler: Any
) -> None:
    add_tasks(session, "a")

    await draining(async_engine, JobQueue(Task), handler).run()

    assert states(session)["a"] == ("done", 1, None)


@pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])
@in_event_loop
async def test_a_handler_that_is_cancelled_from_within_fails_its_own_job_only(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"ab")

    async def handler(email: Email) -> None:
        if email.recipient == "a":
            raise asyncio.CancelledError

    await draining(async_engine, JobQueue(Email), handler, limit=2).run()

    assert statuses(session) == {"a": "failed", "b": "done"}


@pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])
@in_event_loop
async def test_a_handler_that_cancels_its_own_task_leaves_the_next_jobs_alone(
    async_engine: AsyncEngine, session: Session
) -> None:
    """A count of cancellations that a handler leaves behind is not a cancelled run."""
    add_emails(session, *"abcd")
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient in "ab":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if email.recipient == "b":
            await asyncio.sleep(0)
        if email.recipient == "c":
            raise asyncio.CancelledError

    worker = draining(async_engine, JobQueue(Email), handler, limit=1)
    await asyncio.wait_for(worker.run(), 20)

    assert handled == list("abcd")
    assert statuses(session) == {"a": "done", "b": "failed", "c": "failed", "d": "done"}


@pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])
@pytest.mark.parametrize("awaited", [True, False])
@in_event_loop
async def test_plain_and_async_functions_hear_of_claims_and_outcomes(
    async_engine: AsyncEngine, session: Session, awaited: bool
) -> None:
    add_emails(session, *"ab")
    told: list[object] = []

    def on_claim(claimed: Claim[Email]) -> None:
        told.append(len(claimed))

    def on_outcome(email: Email, outcome: Outcome) -> None:
        told.append((email.recipient, outcome))

    async def await_claim(claimed: Claim[Email]) -> None:
        await asyncio.sleep(0)
        on_claim(claimed)

    async def await_outcome(email: Email, outcome: Outcome) -> None:
        await asyncio.sleep(0)
        on_outcome(email, outcome)

    await draining(
        async_engine,
        JobQueue(Email),
        nothing,
        limit=2,
        on_claim=await_claim if awaited else on_claim,
        on_outcome=await_outcome if awaited else on_outcome,
    ).run()

    assert told == [2, ("a", None), ("b", None)]


@in_event_loop
async def test_jobs_are_deleted_and_their_relationships_loaded(
    async_engine: AsyncEngine, session: Session
) -> None:
    session.add(Letter(copy_to=Account(name="anna")))
    session.commit()
    seen: list[str] = []

    async def handler(letter: Letter) -> None:
        assert letter.copy_to is not None
        seen.append(letter.copy_to.name)

    options = [selectinload(Letter.copy_to)]
    await draining(async_engine, JobQueue(Letter), handler, delete=True, options=options).run()

    assert seen == ["anna"]
    assert session.scalars(select(Letter)).all() == []


@in_event_loop
async def test_a_finish_takes_no_transaction_of_its_own(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, *"abcd")
    with commits_counted(engine) as synchronous:
        Worker(engine, JobQueue(Email), lambda email: None, limit=2, drain=True, owner="w").run()
    add_emails(session, *"abcd")

    with commits_counted(async_engine.sync_engine) as awaited:
        await draining(async_engine, JobQueue(Email), nothing, limit=2, owner="w").run()

    assert len(awaited) == len(synchronous)


@contextmanager
def commits_counted(engine: Engine) -> Iterator[list[object]]:
    seen: list[object] = []
    see = seen.append
    event.listen(engine, "commit", see)
    try:
        yield seen
    finally:
        event.remove(engine, "commit", see)


# Several at once


@in_event_loop
async def test_as_many_handlers_run_at_once_as_were_asked_for(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    together = asyncio.Barrier(3)
    running: set[str] = set()
    most = 0

    async def handler(email: Email) -> None:
        nonlocal most
        running.add(email.recipient)
        most = max(most, len(running))
        await together.wait()
        running.discard(email.recipient)

    worker = draining(async_engine, JobQueue(Email), handler, limit=6, concurrency=3)
    await asyncio.wait_for(worker.run(), 20)

    assert most == 3
    assert set(statuses(session).values()) == {"done"}


@in_event_loop
async def test_several_workers_in_one_loop_handle_every_job_once(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *map(str, range(60)))
    handled: Counter[str] = Counter()

    async def handler(email: Email) -> None:
        await asyncio.sleep(0)
        handled[email.recipient] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            worker = draining(
                async_engine,
                JobQueue(Email),
                handler,
                limit=4,
                concurrency=2,
                owner=f"worker-{number}",
            )
            group.create_task(worker.run())

    assert (len(handled), set(handled.values())) == (60, {1})
    assert set(statuses(session).values()) == {"done"}


# Arguments


def test_the_arguments_are_those_of_the_worker() -> None:
    plain, awaited = Worker.__init__.__annotations__, AsyncWorker.__init__.__annotations__

    own = {"engine", "queue", "handler", "on_claim", "on_outcome", "return"}
    shared = {name: kind for name, kind in plain.items() if name not in own}
    options = {name: ref.__forward_arg__ for name, ref in WorkerOptions.__annotations__.items()}
    assert options == shared
    assert awaited.keys() == {*own, "options"}
    assert awaited["options"] == "Unpack[WorkerOptions]"


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
def test_an_argument_that_no_worker_has_is_refused(async_engine: AsyncEngine) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'limmit'"):
        AsyncWorker(async_engine, JobQueue(Email), nothing, limmit=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
def test_the_queues_are_any_iterable(async_engine: AsyncEngine) -> None:
    queue = AsyncJobQueue(JobQueue(Email))
    queue.handler(nothing)

    for queues in ({queue}, (each for each in [queue]), {"mails": queue}.values()):
        AsyncWorker(async_engine, queues)


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
def test_arguments_that_cannot_work_are_refused(async_engine: AsyncEngine) -> None:
    with pytest.raises(ArgumentError, match="needs an AsyncEngine"):
        AsyncWorker(async_engine.sync_engine, JobQueue(Email), nothing)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"needs an Engine, .* AsyncWorker$"):
        Worker(async_engine, JobQueue(Email), print)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at least 1: 0"):
        AsyncWorker(async_engine, JobQueue(Email), nothing, concurrency=0)
    with pytest.raises(ArgumentError, match="a worker commits between claim and finish"):
        AsyncWorker(async_engine, JobQueue(Email, strategy="held"), nothing)


@in_event_loop
async def test_what_a_handler_sets_in_its_context_no_other_one_sees(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abc")
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[tuple[str, str, int | None]] = []

    async def ask() -> int | None:
        await asyncio.sleep(0)
        return job_context().attempt

    async def handler(email: Email) -> None:
        before = tenant.get()
        tenant.set(email.recipient)
        await asyncio.sleep(0.001)
        seen.append((before, tenant.get(), await asyncio.create_task(ask())))

    await draining(async_engine, JobQueue(Email), handler, limit=3, concurrency=2).run()

    assert sorted(seen) == [("none", name, None) for name in "abc"]
    assert tenant.get() == "none"
