"""The worker in an event loop, on every engine and by every async driver."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import ArgumentError, Claim, JobQueue, Owner, reap
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker, claim
from sa_jobqueue.worker import Cancel, Outcome, Retry, Worker
from tests.contract.asyncio_support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.models import Account, Base, Email, Letter, Task, add_emails, add_tasks
from tests.support import cut_connections, make_engine

SOON = timedelta(milliseconds=20)
SHORT_LEASE = timedelta(milliseconds=600)


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def async_engine(engine: Engine, db_url: URL, driver: str) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, driver)


@pytest.fixture
def apart(fresh_database: URL, driver: str) -> Iterator[AsyncEngine]:
    """An async engine for a database of its own, whose connections may be cut."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, *"abc")
    engine.dispose()
    yield make_async_engine(fresh_database, driver)
    with Session(engine) as session:
        assert statuses(session) == dict.fromkeys("abc", "done")
    engine.dispose()


def draining(
    engine: AsyncEngine, queue: Any, handler: Callable[[Any], Any], **options: Any
) -> AsyncWorker[Any]:
    """Make a worker that drains a queue and does not idle for long."""
    if getattr(queue, "sync_queue", queue).mapping.has("run_at"):
        options = {"backoff": lambda attempts: SOON, **options}
    options = {"drain": True, "poll": SOON, **options}
    return AsyncWorker(engine, queue, handler, **options)


def states(session: Session) -> dict[str, tuple[str, int, str | None]]:
    found = session.scalars(select(Task))
    return {task.name: (task.status, task.attempts, task.last_error) for task in found}


def statuses(session: Session) -> dict[str, str]:
    found = session.scalars(select(Email))
    return {email.recipient: email.status for email in found}


async def nothing(job: object) -> None:
    pass


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
async def test_what_a_handler_says_becomes_of_its_job(
    async_engine: AsyncEngine, session: Session
) -> None:
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
    assert found["nonsense"][:2] == ("failed", 2)


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
@in_event_loop
async def test_a_handler_that_cannot_be_awaited_is_told_so(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, "a", max_attempts=1)

    await draining(async_engine, JobQueue(Task), lambda task: None).run()

    assert "an AsyncWorker awaits its handlers" in str(states(session)["a"])


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
@pytest.mark.parametrize("awaited", [True, False])
@in_event_loop
async def test_claims_and_outcomes_are_told_to_plain_functions_and_awaited_ones(
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


# Lease and heartbeat


@in_event_loop
async def test_a_long_handler_and_those_who_wait_behind_it_outlive_their_lease(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, *"ab")
    began = asyncio.get_running_loop().time()

    def reaped() -> int:
        with Session(engine) as own:
            return len(reap(own, Email, lease=SHORT_LEASE))

    async def handler(email: Email) -> None:
        if email.recipient == "a":
            while asyncio.get_running_loop().time() < began + 2.5 * SHORT_LEASE.total_seconds():
                assert await asyncio.to_thread(reaped) == 0
                await asyncio.sleep(0.05)

    await draining(
        async_engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=2, owner="plain"
    ).run()

    assert statuses(session) == {"a": "done", "b": "done"}
    assert "sa_jobqueue heartbeat" not in {task.get_name() for task in asyncio.all_tasks()}


@in_event_loop
async def test_claims_that_were_lost_are_not_handled(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abc")
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "a":
            session.execute(text("UPDATE email SET owner = 'thief' WHERE recipient = 'b'"))
            session.commit()
            while not worker._worker._heartbeat._lost:
                await asyncio.sleep(0.02)

    worker = draining(async_engine, JobQueue(Email, lease=SHORT_LEASE), handler, limit=3)
    await asyncio.wait_for(worker.run(), 20)

    assert handled == ["a", "c"]
    assert statuses(session) == {"a": "done", "b": "claimed", "c": "done"}


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
@in_event_loop
async def test_a_database_in_memory_is_worked_on_without_a_heartbeat(driver: str) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with new_async_session(engine) as own:
        own.add(Email(recipient="a"))
        await own.commit()
    tasks: set[str] = set()

    async def handler(email: Email) -> None:
        tasks.update(task.get_name() for task in asyncio.all_tasks())

    await draining(engine, JobQueue(Email), handler).run()
    await engine.dispose()

    assert "sa_jobqueue worker" in tasks
    assert "sa_jobqueue heartbeat" not in tasks


# Owners and reaping


@in_event_loop
async def test_a_worker_claims_as_the_owner_it_is_given(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, "a")

    with Owner(engine) as owner:
        await draining(async_engine, JobQueue(Email), nothing, owner=owner).run()
        name = owner.name

    assert session.scalars(select(Email.owner)).all() == [name]


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_an_owner_that_loses_its_lock_takes_another_beside_the_event_loop(
    apart: AsyncEngine, fresh_database: URL, db_alias: str
) -> None:
    engine = make_engine(fresh_database)
    connecting: set[threading.Thread] = set()
    claimed_as: set[str | None] = set()

    async def handler(email: Email) -> None:
        claimed_as.add(email.owner)
        if email.recipient == "a":
            assert owner._held is not None
            lock = owner._held.lock
            cut_connections(fresh_database, db_alias)
            while not lock.lost:
                await asyncio.sleep(0.02)
            event.listen(engine, "do_connect", connect)

    def connect(*args: object) -> None:
        connecting.add(threading.current_thread())

    with Owner(engine) as owner:
        worker = draining(apart, JobQueue(Email), handler, owner=owner)
        await asyncio.wait_for(worker.run(), 30)
        claimed_as.discard(owner.name)
    event.remove(engine, "do_connect", connect)
    engine.dispose()

    assert len(claimed_as) == 1  # the name that was lost
    assert connecting
    assert threading.main_thread() not in connecting


@in_event_loop
async def test_a_worker_without_an_owner_says_what_its_claims_wait_for(
    async_engine: AsyncEngine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")

    await draining(async_engine, JobQueue(Email), nothing).run()

    (message,) = [record.getMessage() for record in caplog.records if "lease" in record.message]
    assert "synchronous driver" in message
    (owner,) = session.scalars(select(Email.owner))
    assert owner is not None
    assert "~" not in owner


@in_event_loop
async def test_claims_of_the_dead_are_taken_back_and_handled(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    with Owner(engine) as owner:
        async with new_async_session(async_engine) as own:
            await claim(own, Email, owner=owner)
            await own.commit()
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)

    await draining(async_engine, JobQueue(Email), handler).run()

    assert handled == ["a"]


# Stopping


@pytest.mark.parametrize("by", ["task", "thread", "signal"])
@in_event_loop
async def test_stopping_lets_the_running_jobs_finish_and_releases_the_rest(
    async_engine: AsyncEngine, session: Session, by: str
) -> None:
    add_tasks(session, *"abcd")

    def stop() -> None:
        if by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif by == "thread":
            threading.Thread(target=worker.stop).start()
        else:
            worker.stop()

    async def handler(task: Task) -> None:
        if task.name == "a":
            stop()
        while not worker.stopping:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    worker: AsyncWorker[Task] = AsyncWorker(
        async_engine, JobQueue(Task), handler, limit=4, concurrency=2
    )
    with worker.stopping_on_signals():
        await asyncio.wait_for(worker.run(), 20)

    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("done", 1),
        "b": ("done", 1),
        "c": ("unclaimed", 0),
        "d": ("unclaimed", 0),
    }


@in_event_loop
async def test_an_idle_worker_stops_at_once(
    async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = asyncio.Event()
    worker = AsyncWorker(async_engine, JobQueue(Email), nothing, poll=timedelta(minutes=5))
    monkeypatch.setattr(worker._worker, "_pause", idling(worker._worker._pause, idle))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(idle.wait(), 20)

    await asyncio.to_thread(worker.stop)

    await asyncio.wait_for(running, 20)


def idling(pause: Callable[[int], None], idle: asyncio.Event) -> Callable[[int], None]:
    """Say when a worker has been idle for so long that its pause is a long one."""

    def say(turns: int) -> None:
        idle.set()
        pause(turns + 20)

    return say


@in_event_loop
async def test_a_cancelled_worker_cancels_its_handlers_and_releases_their_jobs(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abcd")
    running = asyncio.Barrier(3)  # two handlers and this test
    cancelled: list[str] = []

    async def handler(task: Task) -> None:
        if task.name == "a":
            return
        await running.wait()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(task.name)
            raise

    worker = AsyncWorker(async_engine, JobQueue(Task), handler, limit=4, concurrency=2)
    run = asyncio.create_task(worker.run())
    await asyncio.wait_for(running.wait(), 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)

    assert sorted(cancelled) == ["b", "c"]
    assert {name: state[:2] for name, state in states(session).items()} == {
        "a": ("done", 1),
        "b": ("unclaimed", 0),
        "c": ("unclaimed", 0),
        "d": ("unclaimed", 0),
    }


@pytest.mark.parametrize("moment", ["begin", "commit"])
@in_event_loop
async def test_a_worker_that_is_cancelled_in_a_turn_leaves_nothing_claimed(
    async_engine: AsyncEngine, session: Session, moment: str
) -> None:
    add_tasks(session, *"ab")
    claims: list[object] = []

    def cancel(connection: object) -> None:
        if claims and not worker.stopping:
            run.cancel()

    event.listen(async_engine.sync_engine, moment, cancel)
    worker = AsyncWorker(
        async_engine, JobQueue(Task), nothing, reap_every=None, on_claim=claims.append
    )
    run = asyncio.create_task(worker.run())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)

    assert "claimed" not in {state[0] for state in states(session).values()}
    assert states(session)["a"][:2] == ("done", 1)


@in_event_loop
async def test_a_cancelled_worker_can_be_cancelled_once_more(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(email: Email) -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
            await asyncio.sleep(60)  # one that does not give up

    run = asyncio.create_task(AsyncWorker(async_engine, JobQueue(Email), handler).run())
    await asyncio.wait_for(running.wait(), 20)
    run.cancel()
    await asyncio.wait_for(cancelled.wait(), 20)
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(run), 20)


@pytest.mark.parametrize("driver", [DRIVERS_OF_POSTGRESQL[0], *DRIVERS_OF_SQLITE])
def test_a_worker_that_has_drained_may_run_again_in_another_loop(
    async_engine: AsyncEngine, session: Session
) -> None:
    worker = draining(async_engine, JobQueue(Email), nothing, interval=SOON)

    async def run() -> None:
        await worker.run()
        await async_engine.dispose()

    for recipient in "ab":
        add_emails(session, recipient)
        asyncio.run(run())

    assert statuses(session) == {"a": "done", "b": "done"}


# Servers that go away


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_worker_whose_connections_are_cut_finishes_what_it_had_handled(
    apart: AsyncEngine, fresh_database: URL, db_alias: str
) -> None:
    handled: list[str] = []

    async def handler(email: Email) -> None:
        handled.append(email.recipient)
        if email.recipient == "b":
            cut_connections(fresh_database, db_alias)

    await asyncio.wait_for(draining(apart, JobQueue(Email), handler, limit=2).run(), 30)

    assert handled == list("abc")


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_server_that_is_away_for_a_while_is_waited_for(
    apart: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [refused_by_the_host, refused_by_a_server_that_starts]
    connect = apart.dialect.connect
    away = asyncio.Event()

    def connect_or_not(*args: Any, **given: Any) -> Any:
        if away.is_set() and refusals:
            return refusals.pop(0)(connect, *args, **given)
        return connect(*args, **given)

    async def handler(email: Email) -> None:
        await apart.dispose()
        away.set()

    monkeypatch.setattr(apart.dialect, "connect", connect_or_not)
    await asyncio.wait_for(draining(apart, JobQueue(Email), handler, limit=2).run(), 30)

    assert refusals == []


def refused_by_the_host(connect: Callable[..., Any], *args: Any, **given: Any) -> Any:
    return connect(*args, **{**given, "port": 1})


def refused_by_a_server_that_starts(connect: Any, *args: Any, **given: Any) -> Any:
    if "asyncpg" not in type(connect.__self__).__module__:
        return refused_by_the_host(connect, *args, **given)
    # As it comes out of SQLAlchemy 2.0.
    raise connect.__self__.dbapi.asyncpg.CannotConnectNowError("the database is starting up")


# Arguments


def test_the_arguments_are_those_of_the_worker() -> None:
    awaited = dict(inspect.signature(AsyncWorker).parameters)
    concurrency = awaited.pop("concurrency")

    plain = inspect.signature(Worker).parameters

    assert [(name, one.default, one.kind) for name, one in awaited.items()] == [
        (name, one.default, one.kind) for name, one in plain.items()
    ]
    assert concurrency.default == 1


@pytest.mark.parametrize("driver", DRIVERS_OF_SQLITE)
def test_what_cannot_work_is_refused(async_engine: AsyncEngine) -> None:
    with pytest.raises(ArgumentError, match="needs an AsyncEngine"):
        AsyncWorker(async_engine.sync_engine, JobQueue(Email), nothing)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"needs an Engine, .* AsyncWorker"):
        Worker(async_engine, JobQueue(Email), print)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at least 1: 0"):
        AsyncWorker(async_engine, JobQueue(Email), nothing, concurrency=0)
    with pytest.raises(ArgumentError, match="a worker commits between claim and finish"):
        AsyncWorker(async_engine, JobQueue(Email, strategy="held"), nothing)
