"""The connections and sessions of a worker: the application's, and as few as promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
    NullPool,
    QueuePool,
    StaticPool,
    Update,
    create_engine,
    event,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session, sessionmaker, with_loader_criteria

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.worker import Retry, Worker
from tests.contract.worker.driver import SOON, Workers
from tests.contract.worker.faults import heard
from tests.models import Base, Email, Task, add_emails
from tests.support import until

HOUR = timedelta(hours=1)

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


BINDS: dict[str, Callable[[Workers], Any]] = {
    "engine": lambda workers: workers.engine,
    "sessionmaker": lambda workers: workers.sessions(),
    "two phases": lambda workers: workers.sessions(twophase=True),
    "routed": lambda workers: sessionmaker(binds={Task: workers.engine}),
}


@pytest.mark.parametrize(
    "bind",
    [
        "engine",
        "sessionmaker",
        # PostgreSQL's default settings allow no prepared transactions, and aiomysql has none.
        pytest.param("two phases", marks=pytest.mark.only_on("mysql", "mariadb")),
    ],
)
def test_turns_that_follow_each_other_share_a_connection(pooled: Workers, bind: str) -> None:
    with checkouts_counted(pooled.engine) as count:
        pooled.drain(Task, bind=BINDS[bind](pooled), owner="w", limit=1)

    assert len(count) < 15
    assert set(pooled.statuses().values()) == {"done"}


@ANYWHERE
def test_sessions_that_choose_their_engine_are_given_no_connection(threads: Workers) -> None:
    threads.add(*map(str, range(30)))

    with checkouts_counted(threads.engine) as count:
        threads.drain(Task, bind=BINDS["routed"](threads), owner="w", limit=1)

    assert len(count) > 30
    assert set(threads.statuses().values()) == {"done"}


@ANYWHERE
def test_a_pool_without_connections_to_keep_is_used_anew_by_each_turn(
    workers: Workers, db_url: URL
) -> None:
    workers.add(*"abc")

    workers.drain(Task, bind=workers.engine_for(db_url, poolclass=NullPool), owner="w", limit=1)

    assert workers.handled == ["a", "b", "c"]


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


@ANYWHERE
def test_a_pool_with_one_connection_serves_handlers_too(threads: Workers, db_url: URL) -> None:
    threads.add("a", "b")
    small = threads.engine_for(db_url, pool_size=1, max_overflow=0, pool_timeout=10)
    seen: list[Any] = []

    def handle(task: Task) -> None:
        with Session(small) as session:
            seen.append(session.scalar(text("SELECT 'seen'")))

    threads.drain(threads.queue(Task, handle), bind=small, owner="w", limit=1)
    small.dispose()

    assert seen == ["seen", "seen"]


@ANYWHERE
def test_a_connection_whose_engine_was_disposed_of_is_closed(threads: Workers, db_url: URL) -> None:
    threads.add("a", "b")
    engine = threads.engine_for(db_url)
    opened: list[object] = []
    closed: list[object] = []
    event.listen(engine, "connect", lambda driver, record: opened.append(driver))
    event.listen(engine, "close", lambda driver, record: closed.append(driver))

    def handle(task: Task) -> None:
        if task.name == "a":
            engine.dispose()

    threads.drain(threads.queue(Task, handle), bind=engine, owner="w", limit=1)
    engine.dispose()

    assert opened
    assert set(map(id, opened)) <= set(map(id, closed))


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


def test_a_static_pool_has_no_connection_for_a_second_slot(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=StaticPool)
    Base.metadata.create_all(engine)

    with pytest.raises(ArgumentError, match=r"gives all threads one connection.*leave out"):
        Worker(engine, JobQueue(Email), print, concurrency=2, drain=True).run()
    Worker(engine, JobQueue(Email), print, drain=True).run()


class TestInMemory:
    """A database in memory has one connection: one thread or task does everything."""

    @pytest.mark.parametrize("option", ["concurrency", "timeout"])
    def test_one_thread_can_do_nothing_at_once(self, option: str) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        Base.metadata.create_all(engine)
        queue = JobQueue(Email)
        queue.handler(timeout=timedelta(seconds=1) if option == "timeout" else None)(print)

        with pytest.raises(ArgumentError, match="use a file, or a database server"):
            Worker(engine, queue, concurrency=2 if option == "concurrency" else 1, drain=True).run()

    def test_a_worker_uses_one_thread_and_renews_nothing(self) -> None:
        engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            add_emails(session, "a", "b")
        before = set(threading.enumerate())
        others: set[threading.Thread] = set()
        queue = JobQueue(Email, lease=SOON)

        @queue.handler
        def handle(email: Email) -> None:
            threading.Event().wait(0.05)
            others.update(set(threading.enumerate()) - before)

        Worker(engine, queue, drain=True, poll=SOON).run()

        assert others == set()
        with Session(engine) as session:
            assert {email.status for email in session.query(Email)} == {"done"}
        engine.dispose()
