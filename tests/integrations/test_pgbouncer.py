"""PgBouncer: jobs are claimed and finished through it, with the settings that a driver needs."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sa_jobqueue.asyncio as queues
from sa_jobqueue import JobQueue, Owner, UnsupportedDatabase, claim, complete, named_lock
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
    patiently,
    tune_storage,
)
from sa_jobqueue.worker import Worker
from tests.migration.support import MIXINS, ORDERS, insert_orders, migrating
from tests.models import Task, add_tasks
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import pooler

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.xdist_group("pgbouncer")]

UNPREPARED: dict[str, dict[str, Any]] = {
    "psycopg2": {},
    "psycopg": {"prepare_threshold": None},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: "",
    },
}

Found = TypeVar("Found")

#: As many tasks as make psycopg prepare a statement that each needs.
MANY = "abcdefgh"


@contextmanager
def through_pooler(url: URL, mode: str = "transaction") -> Iterator[URL]:
    """Start PgBouncer, which may be missing outside of CI."""
    with ExitStack() as stack:
        try:
            pooled = stack.enter_context(pooler(url, mode=mode))
        except NotHere as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(missing))
        yield pooled


@pytest.fixture(scope="module")
def pooled_url(db_url: URL) -> Iterator[URL]:
    with through_pooler(db_url) as url:
        yield url


@pytest.fixture
def pooled(pooled_url: URL) -> Iterator[Callable[..., Any]]:
    """Make an engine of a driver that goes through PgBouncer."""
    made: list[Engine] = []

    def make(driver: str, *, settings: dict[str, Any] | None = None) -> Any:
        url = pooled_url.set(drivername=f"postgresql+{driver}")
        given = UNPREPARED[driver] if settings is None else settings
        if driver == "asyncpg":  # disposed of in its event loop
            return create_async_engine(url, connect_args=given)
        made.append(create_engine(url, connect_args=given))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def statuses(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(Task.status)))


@pytest.fixture
def elsewhere(pooled: Callable[..., Engine]) -> Iterator[Callable[[], None]]:
    """Have the next transaction run on another server connection than the last."""
    others = pooled("psycopg2")
    with others.connect() as holding, others.connect() as idle:
        connections = deque([holding, idle])

        def swap() -> None:
            connections[1].execute(text("SELECT 1"))  # takes the server connection used last
            connections[0].rollback()
            connections.rotate()

        yield swap


@pytest.mark.parametrize("driver", UNPREPARED)
def test_claims_and_finishes_run_on_whatever_server_connection_is_free(
    engine: Engine, pooled: Callable[..., Any], elsewhere: Callable[[], None], driver: str
) -> None:
    with Session(engine) as session:
        add_tasks(session, *MANY)
    through = pooled(driver)

    def work(session: Session) -> None:
        for _ in MANY:
            tasks = claim(session, Task, owner="w", limit=1)
            session.commit()
            elsewhere()
            complete(session, tasks)
            session.commit()

    run(through, work)

    assert statuses(engine) == ["done"] * len(MANY)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_worker_goes_through_it_and_its_owner_by_the_direct_way(
    engine: Engine, pooled: Callable[..., Any], driver: str
) -> None:
    with Session(engine) as session:
        add_tasks(session, *"abc")
    through = pooled(driver)

    async def handle(task: Task) -> None: ...

    async def work(owner: Owner) -> None:
        worker = queues.AsyncWorker(through, JobQueue(Task), handle, owner=owner, drain=True)
        await worker.run()
        await through.dispose()

    with Owner(engine) as owner:
        if driver == "asyncpg":
            asyncio.run(work(owner))
        else:
            Worker(through, JobQueue(Task), lambda task: None, owner=owner, drain=True).run()

    assert statuses(engine) == ["done"] * 3


def run(through: Any, work: Callable[[Session], Found]) -> Found:
    """Run code with a session of an engine, or with that of an asynchronous one."""

    async def run_awaited() -> Found:
        async with AsyncSession(through, expire_on_commit=False) as session:
            found = await session.run_sync(work)
        await through.dispose()
        return found

    if isinstance(through, AsyncEngine):
        return asyncio.run(run_awaited())
    with Session(through, expire_on_commit=False) as session:
        return work(session)


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_what_belongs_to_a_connection_is_refused_in_either_mode(db_url: URL, mode: str) -> None:
    with through_pooler(db_url, mode) as url:
        through = create_engine(url, poolclass=NullPool)
        with pytest.raises(UnsupportedDatabase, match="connects to the server itself"):
            Owner(through).open()
        with pytest.raises(UnsupportedDatabase, match="names the server itself"):
            named_lock(through, "report", timeout=timedelta(0)).acquire()


# -- migrations -----------------------------------------------------------


def settings_left(url: URL, number: int = 5) -> set[str]:
    """Return the settings of the session on each of the pooler's server connections."""
    engine = create_engine(url, poolclass=NullPool)
    connections = [engine.connect() for _ in range(number)]
    asked = text("SELECT name FROM pg_settings WHERE source = 'session'")
    left = {name for connection in connections for name in connection.scalars(asked)}
    for connection in connections:
        connection.close()
    return left


def test_migrations_leave_no_setting_behind(fresh_database: URL) -> None:
    direct = create_engine(fresh_database, poolclass=NullPool)
    ORDERS.create(direct)
    insert_orders(direct, range(20))
    with through_pooler(fresh_database) as url:
        before = settings_left(url)
        with migrating(create_engine(url, poolclass=NullPool)) as op:
            add_job_columns(op, "orders", *MIXINS, existing_rows="amount > 10", batch=3)
            create_job_indexes(op, "orders", *MIXINS)
            create_job_indexes(op, "orders", *MIXINS, queue_args={"equality": "note"}, replace=True)
            backfill(op, "orders", "amount < 5", values={"note": "few"}, batch=2)
            patiently(op, lambda: op.create_index("ix_note", "orders", ["note"]))
            tune_storage(op, "orders")
            drop_job_indexes(op, "orders")
            drop_job_columns(op, "orders", *MIXINS)

        assert settings_left(url) == before
