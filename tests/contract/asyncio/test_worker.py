"""What only an AsyncWorker does; tests/contract/worker has what it does as a Worker does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    in_event_loop,
    new_async_session,
)
from tests.contract.worker.driver import Workers
from tests.contract.worker.faults import LostAnswer
from tests.models import Base, Task
from tests.support import cut_connections, make_engine


@pytest.mark.parametrize("transactional", [False, True])
def test_each_driver_handles_each_job_once_while_a_commit_is_not_answered(
    engine: Engine, driver: str, transactional: bool
) -> None:
    workers = Workers(driver, engine)
    workers.add(*"abcdef", max_attempts=1)

    def handle_in(own: Session, task: Task) -> None:
        task.priority = 7
        own.flush()
        workers.note(task)

    handler = handle_in if transactional else workers.note
    queue = workers.queue(Task, handler, transactional=transactional)
    with LostAnswer(workers.engine, 1):
        workers.drain(queue, limit=2, owner="w")

    assert sorted(workers.handled) == list("abcdef")
    assert set(workers.statuses().values()) == {"done"}


@pytest.mark.parametrize("driver", [*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB])
def test_a_worker_whose_connections_are_cut_finishes_what_it_had_handled(
    fresh_database: URL, driver: str, db_alias: str
) -> None:
    plain = make_engine(fresh_database)
    Base.metadata.create_all(plain)
    workers = Workers(driver, plain)
    workers.add(*"abc")
    plain.dispose()

    def handle(task: Task) -> None:
        workers.note(task)
        if task.name == "b":
            cut_connections(fresh_database, db_alias)

    workers.drain(Task, handle, limit=2)

    assert workers.handled == list("abc")
    assert set(workers.statuses().values()) == {"done"}
    plain.dispose()


@pytest.mark.parametrize("driver", ["asyncio"])
def test_a_handler_that_cancels_its_own_task_leaves_the_next_jobs_alone(
    engine: Engine, driver: str
) -> None:
    """A count of cancellations that a handler leaves behind is not a cancelled run."""
    workers = Workers(driver, engine)
    workers.add(*"abcd", max_attempts=1)

    async def handle(task: Task) -> None:
        if task.name in "ab":
            own = asyncio.current_task()
            assert own is not None
            own.cancel()
        if task.name == "b":
            await asyncio.sleep(0)
        if task.name == "c":
            raise asyncio.CancelledError

    workers.drain(Task, handle, limit=1)

    assert workers.statuses() == {"a": "done", "b": "failed", "c": "failed", "d": "done"}


@in_event_loop
async def test_a_database_in_memory_has_no_second_connection_and_no_heartbeat() -> None:
    queue = JobQueue(Task)
    tasks: set[str] = set()

    @queue.handler(timeout=timedelta(milliseconds=50))
    async def send(task: Task) -> None:
        tasks.update(each.get_name() for each in asyncio.all_tasks())
        if task.name == "a":
            await asyncio.sleep(60)

    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with new_async_session(engine) as own:
        own.add_all(Task(name=name, max_attempts=1) for name in "ab")
        await own.commit()
        with pytest.raises(ArgumentError, match="one connection, and concurrency= needs more"):
            await AsyncWorker(engine, queue, concurrency=2, drain=True).run()
        await AsyncWorker(engine, queue, drain=True).run()
        states = (await own.scalars(select(Task.status).order_by(Task.id))).all()
    await engine.dispose()

    assert states == ["failed", "done"]
    assert "sa_jobqueue worker" in tasks
    assert "sa_jobqueue heartbeat" not in tasks
