"""The verbs for an AsyncSession, on every engine and by every async driver."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

import sa_jobqueue
from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    ConstantBackoff,
    JobQueue,
    JobStatus,
    NotClaimed,
    Owner,
    OwnerState,
    UnsupportedDatabase,
    is_transient,
)
from sa_jobqueue import asyncio as sa_asyncio
from sa_jobqueue.asyncio import (
    AsyncJobQueue,
    advisory_session,
    cancel,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    connection_owner,
    count_by_status,
    enqueue,
    fail,
    owner_state,
    position,
    positions,
    prune,
    queue_stats,
    reap,
    release,
    renew,
    reprioritize,
    retry,
    round_progress,
    start_round,
)
from sa_jobqueue.dialects import database_of
from tests.contract.asyncio_support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.contract.round_models import Subscriber, emptied
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    kept,
    mark,
)
from tests.models import Email, Task, add_emails, add_tasks, names, recipients

LEASE = timedelta(minutes=5)


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def async_engine(engine: Engine, db_url: URL, driver: str) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, driver)


# Every verb


@in_event_loop
async def test_a_batch_is_enqueued_claimed_and_completed(
    async_engine: AsyncEngine, driver: str
) -> None:
    async with new_async_session(async_engine) as session:
        rows = [{"recipient": recipient} for recipient in "abc"]
        assert await enqueue(session, Email, rows) == 3
        await session.commit()

        emails = await claim(session, Email, Email.recipient != "c", owner=driver, limit=5)
        await session.commit()
        await complete(session, emails)
        await session.commit()

        assert sorted(recipients(emails)) == ["a", "b"]
        assert {email.owner for email in emails} == {driver}
        counts = await count_by_status(session, Email)
        assert (counts["done"], counts["unclaimed"]) == (2, 1)


@in_event_loop
async def test_jobs_are_failed_released_given_up_and_deleted(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abcd")
    async with new_async_session(async_engine) as own:
        tasks = await claim(own, Task, owner="w", limit=4)
        await own.commit()

        await fail(own, tasks[0], error=ValueError("no"), retry_in=timedelta(minutes=1))
        await release(own, tasks[1])
        await cancel_claimed(own, tasks[2], reason="no use")
        await complete(own, tasks[3], delete=True)
        await own.commit()

    found = {task.name: (task.status, task.attempts) for task in session.scalars(select(Task))}
    assert found == {"a": ("unclaimed", 1), "b": ("unclaimed", 0), "c": ("cancelled", 1)}


@in_event_loop
async def test_duplicates_are_left_out_and_failures_wait_by_the_queues_policy(
    async_engine: AsyncEngine, session: Session, db_alias: str
) -> None:
    queue = AsyncJobQueue(JobQueue(Task, backoff=ConstantBackoff(timedelta(hours=1))))
    rows = [{"id": number, "name": str(number)} for number in (1, 2, 1)]
    async with new_async_session(async_engine) as own:
        told = await enqueue(own, Task, rows, skip_duplicates=True)
        again = await enqueue(own, Task, [*rows, {"id": 3, "name": "3"}], skip_duplicates=True)
        await queue.fail(own, await queue.claim(own, owner="w", limit=5))
        await own.commit()

    server = db_alias in ("mysql", "mariadb")
    assert (told, again) == ((None, None) if server else (2, 1))
    tasks = session.scalars(select(Task)).all()
    soon = datetime.now(UTC) + timedelta(minutes=58)
    assert [(task.status, task.run_at > soon) for task in tasks] == [("unclaimed", True)] * 3


@in_event_loop
async def test_a_claim_is_renewed_and_found_again_by_its_owner(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as other:
        (email,) = await claim(own, Email, owner="w")
        before = email.owner_date
        await own.commit()
        await renew(own, email)
        await own.commit()

        (again,) = await claimed_by(other, Email, "w")
        await complete(other, again)
        await other.commit()

        assert before is not None
        assert again.owner_date is not None
        assert again.owner_date > before
        assert again.status == JobStatus.DONE


@in_event_loop
async def test_jobs_are_cancelled_reprioritized_retried_and_pruned(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, *"abc")
    async with new_async_session(async_engine) as own:
        a, b, c = (await own.scalars(select(Task).order_by(Task.id))).all()

        assert names(await cancel(own, [a, b])) == ["a", "b"]
        assert names(await retry(own, b)) == ["b"]
        assert names(await reprioritize(own, [b, c], -1)) == ["b", "c"]
        await own.commit()
        pruned = await prune(
            own, Task, older_than=timedelta(0), statuses=[JobStatus.CANCELLED], limit=10
        )
        await own.commit()

        stats = await queue_stats(own, Task)
        assert (pruned, stats.depth, stats.scheduled) == (1, 2, 0)
        assert stats.oldest_waiting is not None


@in_event_loop
async def test_a_job_that_a_claim_has_changed_is_loaded_and_another_one_by_a_refresh(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_tasks(session, "a")
    async with new_async_session(async_engine) as own:
        [task] = await claim(own, Task, owner="w")
        await complete(own, task)
        assert task.status == "done"
        await own.commit()

        await retry(own, task)
        assert "status" in instance_state(task).expired_attributes
        await own.refresh(task)

        assert task.status == "unclaimed"


@in_event_loop
async def test_claims_are_taken_back_after_their_lease(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"ab")
    async with new_async_session(async_engine) as own:
        emails = await claim(own, Email, owner="w", limit=2)
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        await own.execute(update(Email).where(Email.id == emails[0].id).values(owner_date=long_ago))
        await own.commit()

        reaped = await reap(own, Email, lease=LEASE)
        await own.commit()

        assert reaped.by_owner == {"w": 1}
        assert (await count_by_status(own, Email))["unclaimed"] == 1


@in_event_loop
async def test_lost_claims_are_raised_through_await_and_the_rest_is_written(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abc")
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as other:
        emails = await claim(own, Email, owner="w", limit=3)
        await own.commit()
        await release(other, emails.fences[1])
        await other.commit()

        with pytest.raises(ClaimLost) as raised:
            await complete(own, emails)
        await own.commit()

        assert recipients(raised.value.lost) == ["b"]
        assert (await count_by_status(own, Email))["done"] == 2


@in_event_loop
async def test_an_entity_that_was_not_claimed_is_refused_through_await(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own:
        email = (await own.scalars(select(Email))).one()

        with pytest.raises(NotClaimed):
            await complete(own, email)


@in_event_loop
async def test_a_scoped_session_claims_and_finishes(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    maker = async_sessionmaker(async_engine, expire_on_commit=False)
    scoped = async_scoped_session(maker, scopefunc=asyncio.current_task)

    emails = await claim(scoped, Email, owner="w")
    await complete(scoped, emails)
    await scoped.commit()
    await scoped.remove()

    assert session.scalars(select(Email.status)).all() == ["done"]


@in_event_loop
async def test_a_queue_has_its_verbs_awaited(async_engine: AsyncEngine, session: Session) -> None:
    add_tasks(session, *"abcdefg")
    queue = AsyncJobQueue(JobQueue(Task, Task.name != "g", lease=LEASE))
    async with new_async_session(async_engine) as own:
        first = await queue.claim(own, owner="w", limit=2)
        await queue.renew(own, first)
        second = await queue.turn(own, first, owner="w", limit=2)
        await queue.release(own, second[0])
        await queue.fail(own, second[1], error="no")
        await own.commit()
        rows = await queue.claim_rows(own, owner="v", limit=2)
        await queue.cancel_claimed(own, rows.fences[0])
        await queue.complete(own, rows.fences[1])
        await queue.claim(own, owner="u")
        await own.commit()

        assert len(await queue.claimed_by(own, "u")) == 1
        ready = select(Task).where(Task.status == "unclaimed").order_by(Task.id)
        waiting = (await own.scalars(ready)).all()
        assert await queue.positions(own, waiting) == [1, None]
        assert await positions(own, waiting) == [1, 2]
        assert await queue.position(own, waiting[0]) == await position(own, waiting[0]) == 1
        assert not await queue.reap(own)
        counts = await count_by_status(own, Task)
    assert (counts["done"], counts["cancelled"], counts["claimed"], counts["unclaimed"]) == (
        3,
        1,
        1,
        2,
    )


# One row, one task


@in_event_loop
async def test_two_tasks_never_share_a_row(async_engine: AsyncEngine, session: Session) -> None:
    add_emails(session, *map(str, range(60)))
    queue = AsyncJobQueue(JobQueue(Email))
    taken: Counter[int] = Counter()

    async def drain(owner: str) -> None:
        empty = 0
        while empty < 3:
            claimed = await transaction(partial(queue.claim, owner=owner, limit=3))
            taken.update(email.id for email in claimed)
            await transaction(partial(queue.complete, jobs=claimed.fences))
            empty = 0 if claimed else empty + 1

    async def transaction(work: Callable[[AsyncSession], Any]) -> Any:
        while True:
            try:
                async with new_async_session(async_engine) as own:
                    await own.run_sync(begin_write)
                    result = await work(own)
                    await own.commit()
                    return result
            except DBAPIError as error:
                if not is_transient(error):
                    raise

    await asyncio.gather(*(drain(f"task-{number}") for number in range(4)))

    assert len(taken) == 60
    assert set(taken.values()) == {1}
    assert set(session.scalars(select(Email.status))) == {"done"}


def begin_write(session: Session) -> None:
    database_of(session.connection()).begin_write(session.connection())


@pytest.mark.strategies("skip_locked", "candidates", "update_then_select", "held")
@in_event_loop
async def test_a_claim_passes_over_what_another_task_has_locked(
    async_engine: AsyncEngine, session: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email, strategy=strategy))
    async with new_async_session(async_engine) as one, new_async_session(async_engine) as two:
        first = await queue.claim(one, owner="one", limit=2)
        if strategy == "update_then_select":  # others would wait for its locks
            await one.commit()

        second = await queue.claim(two, owner="two", limit=4)

        assert recipients(first) == ["a", "b"]
        assert recipients(second) == ["c", "d"]
        await two.rollback()
        await queue.complete(one, first)
        await one.commit()
    assert session.scalars(select(Email.status).order_by(Email.id)).all()[:2] == ["done", "done"]


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_candidates_are_drawn_from_another_session(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    queue = AsyncJobQueue(JobQueue(Email, strategy="candidates"))
    one_more: Any = partial(claim, entity=Email, strategy="candidates")
    claimed: list[list[str]] = []
    async with new_async_session(async_engine) as own, new_async_session(async_engine) as replica:
        for take in (queue.claim, queue.claim_rows, one_more):
            jobs = await take(own, owner="w", limit=2, candidates_from=replica)
            claimed.append(sorted(recipients(jobs)))
            assert replica.in_transaction()
            await replica.rollback()
        await own.commit()

    assert claimed == [["a", "b"], ["c", "d"], ["e", "f"]]


@in_event_loop
async def test_strict_order_has_one_claimer_at_a_time(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcd")
    queue = AsyncJobQueue(JobQueue(Email, strict_order=True))
    order: list[str] = []

    async def consume(name: str, claimed: asyncio.Event, go: asyncio.Event) -> None:
        async with new_async_session(async_engine) as own:
            emails = await queue.claim(own, owner=name, limit=2)
            order.extend(recipients(emails))
            claimed.set()
            await go.wait()
            await own.commit()

    first, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    one = asyncio.create_task(consume("one", first, go))
    await asyncio.wait_for(first.wait(), 10)
    two = asyncio.create_task(consume("two", second, go))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.wait(), 0.3)
    go.set()
    await asyncio.wait_for(asyncio.gather(one, two), 10)

    assert order == list("abcd")


# What the drivers tell


@in_event_loop
async def test_autocommit_is_known_without_asking_the_server(
    async_engine: AsyncEngine, db_url: URL, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(connection: Connection) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(connection.dialect, "get_isolation_level", refuse)
            return database_of(connection).in_autocommit(connection)

    def refuse(*_: object) -> None:
        raise AssertionError("the server is asked")

    committing = make_async_engine(db_url, driver, isolation_level="AUTOCOMMIT")
    async with async_engine.connect() as one, committing.connect() as two:
        told = [await one.run_sync(ask), await two.run_sync(ask)]
    await committing.dispose()

    assert told == [False, True]


@in_event_loop
async def test_two_claimers_in_autocommit_never_share_a_row(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, *"abcdef")
    engine = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with new_async_session(engine) as one, new_async_session(engine) as two:
        first = await claim(one, Email, owner="one", limit=3)
        second = await claim(two, Email, owner="two", limit=6)
        await complete(one, first)

    assert recipients(first) == ["a", "b", "c"]
    assert recipients(second) == ["d", "e", "f"]


@pytest.mark.parametrize("driver", DRIVERS_OF_INNODB)
@in_event_loop
async def test_a_claim_begins_its_transaction_as_read_committed(
    async_engine: AsyncEngine, session: Session
) -> None:
    add_emails(session, "a")
    async with new_async_session(async_engine) as own:
        await claim(own, Email, owner="w")

        seen = await own.run_sync(
            lambda sync: database_of(sync.connection()).begin(sync.connection())
        )

    assert seen is False  # the trial is told that a transaction is open


@in_event_loop
async def test_a_connection_knows_its_backend(async_engine: AsyncEngine, db_alias: str) -> None:
    def ask(connection: Any) -> tuple[int | None, int | None]:
        database = database_of(connection)
        return database.told_backend(connection), database.backend(connection)

    async with async_engine.connect() as connection:
        told, backend = await connection.run_sync(ask)

    assert told == backend
    assert (told is None) == (db_alias == "sqlite")


# Owners


@in_event_loop
async def test_an_owner_of_a_synchronous_engine_claims(
    async_engine: AsyncEngine, engine: Engine, session: Session
) -> None:
    add_emails(session, "a")
    session.commit()
    async with new_async_session(async_engine) as own:
        with Owner(engine) as owner:
            (email,) = await claim(own, Email, owner=owner)
            await own.commit()
            alive = await owner_state(own, str(email.owner))
        dead = await owner_state(own, str(email.owner))

    assert (alive, dead) == (OwnerState.ALIVE, OwnerState.DEAD)


def test_an_owner_of_an_async_engine_is_refused_with_the_way_out(
    async_engine: AsyncEngine,
) -> None:
    with pytest.raises(ArgumentError, match="one of a synchronous driver for the same database"):
        Owner(async_engine)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(UnsupportedDatabase, match="an Engine of a synchronous driver"):
        Owner(async_engine.sync_engine).open()


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
@in_event_loop
async def test_a_connection_is_an_owner(async_engine: AsyncEngine, session: Session) -> None:
    add_emails(session, "a")
    async with async_engine.connect() as connection, AsyncSession(connection) as own:
        name = await connection_owner(own)
        (email,) = await claim(own, Email, owner=name)

        assert email.owner == name
        assert await owner_state(own, name) is OwnerState.ALIVE


# Advisory locks


@pytest.fixture
def mailing(engine: Engine) -> Any:
    SubscriptionBase.metadata.drop_all(engine)  # other tests may have left rows
    SubscriptionBase.metadata.create_all(engine)
    with Session(engine) as session:
        add_subscriptions(session, 5)
    yield engine
    SubscriptionBase.metadata.drop_all(engine)


async def claim_subscriptions(session: AsyncSession, **options: Any) -> Any:
    options = {"limit": 2, "order_by": Subscription.id, **options}
    return await claim(session, Subscription, NOT_MAILED, strategy="advisory", **options)


def ids(rows: Any) -> list[int]:
    return [row.id for row in rows]


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@in_event_loop
async def test_advisory_claims_are_freed_by_the_commit_of_their_finish(
    async_engine: AsyncEngine, mailing: Engine
) -> None:
    async with advisory_session(async_engine) as one, advisory_session(async_engine) as two:
        first = await claim_subscriptions(one)
        second = await claim_subscriptions(two)
        assert (ids(first), ids(second), kept(mailing)) == ([1, 2], [3, 4], 4)

        mark(first)
        await complete(one, first)
        before = kept(mailing)
        await one.commit()

        assert (before, kept(mailing)) == (4, 2)
        assert ids(await claim_subscriptions(one, limit=5)) == [5]
    assert kept(mailing) == 0


@pytest.mark.parametrize("driver", DRIVERS_OF_POSTGRESQL)
@in_event_loop
async def test_a_commit_that_the_server_rolls_back_frees_nothing(
    async_engine: AsyncEngine, mailing: Engine
) -> None:
    async with advisory_session(async_engine) as own:
        claimed = await claim_subscriptions(own)
        await own.commit()
        mark(claimed)
        await complete(own, claimed)
        with pytest.raises(DBAPIError):
            await own.execute(text("SELECT 1 / 0"))
        await own.commit()  # the server answers ROLLBACK, and no error

        assert kept(mailing) == 2
    assert kept(mailing) == 0


@pytest.mark.parametrize("driver", [*DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
@in_event_loop
async def test_advisory_sessions_are_refused_elsewhere(async_engine: AsyncEngine) -> None:
    with pytest.raises(UnsupportedDatabase, match="no advisory locks for rows"):
        async with advisory_session(async_engine):
            pass


@in_event_loop
async def test_a_round_is_started_and_counted(async_engine: AsyncEngine, engine: Engine) -> None:
    emptied(engine)
    async with new_async_session(async_engine) as session:
        await enqueue(session, Subscriber, [{"id": 1}, {"id": 2}])
        await complete(session, await claim(session, Subscriber, owner="w", limit=2))

        number = await start_round(session, Subscriber, chunk=1)

        progress = await round_progress(session, Subscriber)
        assert (number, progress.unclaimed, progress.done) == (1, 2, 0)


# Wrappers


def verbs() -> list[str]:
    """Name the public functions that take a session; start_round() takes an engine too."""
    functions = {name: getattr(sa_jobqueue, name) for name in sa_jobqueue.__all__}
    taking = [name for name, function in functions.items() if takes_a_session(function)]
    return [*taking, "start_round"]


def methods() -> list[str]:
    """Name the methods of a JobQueue that take a session."""
    return [name for name, method in inspect.getmembers(JobQueue) if takes_a_session(method)]


def takes_a_session(function: object) -> bool:
    return inspect.isfunction(function) and "session" in inspect.signature(function).parameters


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    """Describe the parameters of a function: all but their types."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.default, parameter.kind) for parameter in parameters]


def test_every_verb_is_there_to_be_awaited() -> None:
    others = {"advisory_session", "AsyncJobQueue", "AsyncWorker", "AsyncWorkflow"}

    assert {*verbs(), *others} == set(sa_asyncio.__all__)
    assert "claim" in verbs()


@pytest.mark.parametrize("name", [*verbs(), "advisory_session"])
def test_a_verb_has_the_same_arguments_when_it_is_awaited(name: str) -> None:
    awaited = getattr(sa_asyncio, name)

    assert arguments(awaited) == arguments(getattr(sa_jobqueue, name))
    assert inspect.iscoroutinefunction(awaited) or name == "advisory_session"
    assert awaited.__doc__


@pytest.mark.parametrize("name", methods())
def test_a_method_of_a_queue_has_the_same_arguments_when_it_is_awaited(name: str) -> None:
    awaited = getattr(AsyncJobQueue, name)

    assert arguments(awaited) == arguments(getattr(JobQueue, name))
    assert inspect.iscoroutinefunction(awaited)
    assert awaited.__doc__


@in_event_loop
async def test_a_synchronous_session_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"an AsyncSession is needed, .* in sa_jobqueue,"):
        await claim(Session(), Email, owner="w")  # type: ignore[arg-type]  # what is refused


def test_an_async_session_is_refused_by_the_synchronous_verbs_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"sa_jobqueue\.asyncio"):
        sa_jobqueue.claim(AsyncSession(), Email, owner="w")  # type: ignore[arg-type]  # refused
