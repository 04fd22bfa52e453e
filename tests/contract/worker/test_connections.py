"""The connections and sessions of a worker: the application's, and as few as promised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    Delete,
    Engine,
    QueuePool,
    StaticPool,
    Update,
    create_engine,
    event,
    select,
    update,
)
from sqlalchemy.orm import Session, sessionmaker, with_loader_criteria

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Retry
from tests.contract.asyncio.support import make_async_engine
from tests.contract.worker.driver import SOON, Workers
from tests.contract.worker.faults import heard
from tests.models import Base, Email, Task, add_emails
from tests.support import until

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)

#: Where the database cannot matter.
ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


# The application's sessions


class SoftDeleting(Session):
    """A session that does not see what is deleted, and routes by class."""

    def get_bind(self, mapper: Any = None, **given: Any) -> Any:
        assert mapper is not None, "this application routes by class"
        return super().get_bind(mapper=mapper, **given)


@event.listens_for(SoftDeleting, "do_orm_execute")
def _hide_deleted(state: Any) -> None:
    if state.is_select:
        hidden = with_loader_criteria(Email, Email.subject.is_(None))
        state.statement = state.statement.options(hidden)


@ANYWHERE
def test_a_sessionmakers_criteria_and_routing_hold_for_claims(
    workers: Workers, session: Session
) -> None:
    add_emails(session, *"abcdef")
    deleted = update(Email).where(Email.recipient.in_([*"bdf"]))
    workers.execute(deleted.values(subject="deleted"))
    if workers.awaits:
        maker = workers.sessions(SoftDeleting)
    else:
        maker = sessionmaker(class_=SoftDeleting, binds={Email: workers.engine})
    queue = workers.queue(Email, lambda email: workers.handled.append(email.recipient))

    with workers.running(queue, bind=maker, limit=2):
        until(lambda: len(workers.handled) == 3)

    assert workers.handled == ["a", "c", "e"]
    done = session.scalars(select(Email.recipient).where(Email.status == "done"))
    assert sorted(done) == ["a", "c", "e"]


@ANYWHERE
def test_a_job_that_a_criterion_hides_from_its_handler_says_so(
    workers: Workers, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")
    queue = workers.queue(Email, lambda session, email: None, transactional=True)

    workers.drain(
        queue,
        bind=workers.sessions(SoftDeleting),
        on_claim=lambda claim: workers.execute(update(Email).values(subject="deleted")),
    )

    assert "have the criterion show all jobs" in caplog.text
    assert session.scalars(select(Email.status)).all() == ["failed"]


def test_a_drain_asks_for_remaining_jobs_where_it_writes(threads: Workers) -> None:
    """A replica may not show yet that a job waits for its retry."""
    engine = threads.engine
    anywhere = {"check_same_thread": False}
    replica = create_engine("sqlite://", poolclass=StaticPool, connect_args=anywhere)
    Base.metadata.create_all(replica, [Base.metadata.tables[Task.__tablename__]])

    class ReadsFromReplica(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **given: Any) -> Any:
            writes = self._flushing or isinstance(clause, Update | Delete)
            return engine if writes else replica

    threads.add("a")
    later = Retry(timedelta(seconds=0.3))
    queue = threads.queue(Task, lambda task: later if task.attempts < 2 else None)
    threads.drain(queue, bind=sessionmaker(class_=ReadsFromReplica))
    replica.dispose()

    assert threads.rows()["a"][:2] == ("done", 2)


# The connection of the turns


@pytest.fixture
def pooled(workers: Workers, db_url: URL) -> Iterator[Workers]:
    """Workers with thirty jobs, on an engine of their own that has a pool."""
    workers.add(*map(str, range(30)))
    # SQLAlchemy before 2.0.38 had no pool for aiosqlite, unless it was asked for.
    pool = AsyncAdaptedQueuePool if workers.awaits else QueuePool
    workers.engine = workers.engine_for(db_url, poolclass=pool)
    yield workers
    workers.engine.dispose(close=not workers.awaits)


@contextmanager
def checkouts_counted(engine: Engine) -> Iterator[list[object]]:
    count: list[object] = []
    with heard(engine, "checkout", lambda *_: count.append(1)):
        yield count


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(None, marks=ANYWHERE),
        pytest.param({}, marks=ANYWHERE),
        # PostgreSQL's default settings allow no prepared transactions, and aiomysql has none.
        pytest.param({"twophase": True}, marks=pytest.mark.only_on("mysql", "mariadb")),
    ],
    ids=["engine", "sessionmaker", "two phases"],
)
def test_turns_that_follow_each_other_share_a_connection(
    pooled: Workers, options: dict[str, Any] | None
) -> None:
    bind = pooled.engine if options is None else pooled.sessions(**options)

    with checkouts_counted(pooled.engine) as count:
        pooled.drain(Task, bind=bind, owner="w", limit=1)

    assert len(count) < 15
    assert set(pooled.statuses().values()) == {"done"}


@ANYWHERE
def test_an_idle_worker_and_a_long_handler_leave_the_pool_its_connections(
    pooled: Workers,
) -> None:
    def all_are_back() -> bool:
        pool = pooled.engine.pool
        assert isinstance(pool, QueuePool)
        return not pool.checkedout()

    def handle(task: Task) -> None:
        if task.name == "0":
            until(all_are_back)
        pooled.note(task)

    with pooled.running(pooled.queue(Task, handle), owner="w", poll=HOUR):
        until(lambda: len(pooled.handled) == 30)
        until(all_are_back)


# Too few connections


def test_a_pool_that_is_too_small_for_transactional_handlers_is_refused(
    workers: Workers, db_url: URL
) -> None:
    # The pool of a file has an overflow if it is to be a pool at all.
    overflow = 1 if db_url.get_backend_name() == "sqlite" else 0
    small = workers.engine_for(db_url, pool_size=3 - overflow, max_overflow=overflow)
    queue = workers.queue(Task, lambda session, task: None, transactional=True)

    with pytest.raises(ArgumentError, match=r"need up to 4 connections.*has 3"):
        workers.drain(queue, bind=small, concurrency=2)
    workers.drain(queue, bind=small, concurrency=1)
    small.dispose(close=not workers.awaits)


@pytest.mark.parametrize(
    ("url", "concurrency", "timeout", "said"),
    [
        ("sqlite:///{}/shop.db", 2, None, "gives all threads one connection.*leave out"),
        ("sqlite://", 2, None, "use a file, or a database server"),
        ("sqlite://", 1, SECOND, "use a file, or a database server"),
    ],
)
def test_one_connection_serves_one_thread_which_renews_nothing(
    tmp_path: Path, url: str, concurrency: int, timeout: timedelta | None, said: str
) -> None:
    anywhere = {"check_same_thread": False}
    engine = create_engine(url.format(tmp_path), poolclass=StaticPool, connect_args=anywhere)
    Base.metadata.create_all(engine)
    workers = Workers("threads", engine)
    workers.add("a", "b")
    before = set(threading.enumerate())
    others: set[str] = set()  # beside the one that watches deadlines, which connects nowhere

    def handle(task: Task) -> None:
        threading.Event().wait(0.05)
        new = {thread.name for thread in set(threading.enumerate()) - before}
        others.update(new - {"sa_jobqueue deadlines"})

    with pytest.raises(ArgumentError, match=said):
        workers.drain(workers.queue(Task, handle, timeout=timeout), concurrency=concurrency)
    workers.drain(workers.queue(Task, handle, lease=SOON), owner="w")

    assert (others == set()) == (url == "sqlite://")
    assert set(workers.statuses().values()) == {"done"}
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_connection_that_dies_before_its_settings_are_made_is_replaced(
    engine: Engine, session: Session
) -> None:
    add_emails(session, "ann", "bo")
    async_engine = make_async_engine(engine.url, "asyncpg")
    handled: list[int] = []
    died: list[Any] = []

    @event.listens_for(async_engine.sync_engine, "connect", insert=True)
    def die(connection: Any, _: Any) -> None:
        if len(died) < 3:
            died.append(connection)
            connection.driver_connection.terminate()

    async def handle(email: Email) -> None:
        handled.append(email.id)

    async def run() -> None:
        await AsyncWorker(async_engine, JobQueue(Email), handle, drain=True).run()
        await async_engine.dispose()

    asyncio.run(run())

    assert (len(handled), len(died)) == (2, 3)
