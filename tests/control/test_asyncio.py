"""Control and schedules for an AsyncSession, by every async driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, MetaData, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

import sa_jobqueue.control
from sa_jobqueue import ArgumentError, JobQueue, fence_of
from sa_jobqueue.asyncio import AsyncJobQueue, claim
from sa_jobqueue.asyncio import control as awaited
from sa_jobqueue.asyncio.schedules import AsyncSchedules
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.schedules import Schedules
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)

from .conftest import TABLES, Letter

#: Not beside the letters: workers of other tests would run them.
SCHEDULES = Schedules(MetaData(), name="controlled_schedules")

OUTBOX: AsyncJobQueue[Letter] = AsyncJobQueue(JobQueue(Letter))


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def async_engine(engine: Engine, db_url: URL, request: pytest.FixtureRequest) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, request.param)


@pytest.fixture
def schedules(engine: Engine) -> Iterator[AsyncSchedules]:
    """Schedules whose table is empty."""
    metadata = mapping_of(SCHEDULES.entity).table.metadata
    metadata.create_all(engine)
    yield AsyncSchedules(SCHEDULES)
    metadata.drop_all(engine)


@in_event_loop
async def test_an_async_session_pauses_lists_and_asks(async_engine: AsyncEngine) -> None:
    async with new_async_session(async_engine) as session:
        session.add(Letter())
        await session.commit()
        (letter,) = await claim(session, Letter, owner="w")
        await awaited.register_worker(session, "w", [OUTBOX])
        assert await awaited.update_worker(session, "w", jobs=1, tables=TABLES)

        assert await awaited.pause(session, OUTBOX)
        assert await awaited.request_stop(session, letter)

        assert [found.queue for found in await awaited.paused(session, tables=TABLES)]
        (worker,) = await awaited.workers(session, tables=TABLES)
        assert (worker.name, worker.jobs) == ("w", 1)
        state = await awaited.read_control(session, [OUTBOX], owner="w")
        assert state.is_paused(OUTBOX)
        assert state.asks_to_stop(fence_of(letter))
        assert await awaited.resume(session, OUTBOX)
        await awaited.unregister_worker(session, "w", tables=TABLES)
        assert await awaited.workers(session, tables=TABLES) == []


@in_event_loop
async def test_an_async_session_runs_and_changes_schedules(
    async_engine: AsyncEngine, schedules: AsyncSchedules
) -> None:
    async with new_async_session(async_engine) as session:
        # Its declaration goes with it: workers of other tests would warn that nobody runs it.
        ticking = AsyncJobQueue(JobQueue(Letter))
        ticking.every("* * * * * *", name="tick")
        declared = await schedules.declare(session, [ticking])
        await schedules.add(session, "nightly", OUTBOX, "0 0 1 1 *")
        assert await schedules.pause(session, "nightly")
        assert await schedules.resume(session, "nightly")
        await schedules.run_now(session, "nightly", OUTBOX)
        await session.commit()

        assert declared.added == ("tick",)
        assert [each.name for each in await schedules.all(session)] == ["nightly", "tick"]
        assert await schedules.due_in(session, [OUTBOX]) is not None
        assert await schedules.run_due(session, [OUTBOX]) is not None
        await schedules.remove(session, "nightly")
        assert await session.scalar(select(func.count()).select_from(Letter))


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("name", awaited.__all__)
def test_each_verb_of_control_has_its_awaited_form(name: str) -> None:
    assert getattr(awaited, name).__wrapped__ is getattr(sa_jobqueue.control, name)


@pytest.mark.only_on("sqlite")
def test_the_verbs_that_are_not_awaited_say_where_the_others_are() -> None:
    session: Any = AsyncSession()
    calls: dict[str, Callable[[], object]] = {
        "pause": lambda: sa_jobqueue.control.pause(session, Letter),
        "read_control": lambda: sa_jobqueue.control.read_control(session, [Letter], owner="w"),
        "add": lambda: SCHEDULES.add(session, "nightly", OUTBOX, "0 0 1 1 *"),
        "due_in": lambda: SCHEDULES.due_in(session, [OUTBOX]),
    }

    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=r"sa_jobqueue\.asyncio\.control.*AsyncSchedules"):
            pytest.fail(f"{name}: {call()}")


@pytest.mark.only_on("sqlite")
@in_event_loop
async def test_the_verbs_that_are_awaited_say_where_the_others_are() -> None:
    session: Any = Session()

    with pytest.raises(ArgumentError, match=r"from sa_jobqueue\.control"):
        await awaited.pause(session, Letter)
