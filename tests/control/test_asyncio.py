"""Control and schedules are awaited by run_sync, by every async driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, MetaData, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from sa_jobqueue import ArgumentError, JobQueue, control, fence_of
from sa_jobqueue.asyncio import AsyncJobQueue, claim
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
METADATA = MetaData()
SCHEDULES = Schedules(METADATA, name="controlled_schedules")

OUTBOX: AsyncJobQueue[Letter] = AsyncJobQueue(JobQueue(Letter))


@pytest.fixture(params=[DRIVERS_OF_POSTGRESQL[0], DRIVERS_OF_INNODB[0], *DRIVERS_OF_SQLITE])
def async_engine(engine: Engine, db_url: URL, request: pytest.FixtureRequest) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, request.param)


@pytest.fixture
def schedules(engine: Engine) -> Iterator[Schedules]:
    """Schedules whose table is empty."""
    METADATA.create_all(engine)
    yield SCHEDULES
    METADATA.drop_all(engine)


@in_event_loop
async def test_an_async_session_calls_the_verbs(
    async_engine: AsyncEngine, schedules: Schedules
) -> None:
    # Its declaration goes with it: workers of other tests would warn that nobody runs it.
    ticking = AsyncJobQueue(JobQueue(Letter))
    ticking.every("* * * * * *", name="tick")
    async with new_async_session(async_engine) as session:
        run = session.run_sync
        session.add(Letter())
        await session.commit()
        (letter,) = await claim(session, Letter, owner="w")
        await run(control.register_worker, "w", [OUTBOX], jobs=1)

        assert await run(control.pause, OUTBOX)
        assert await run(control.request_stop, letter)
        assert len(await run(control.paused, tables=TABLES)) == 1
        assert [each.jobs for each in await run(control.workers, tables=TABLES)] == [1]
        state = await run(control.read_control, [OUTBOX], owner="w")
        assert (state.is_paused(OUTBOX), state.asks_to_stop(fence_of(letter))) == (True, True)
        assert await run(control.resume, OUTBOX)
        await run(control.unregister_worker, "w", tables=TABLES)
        assert (await run(schedules.declare, [ticking])).added == ("tick",)
        await run(schedules.add, "nightly", OUTBOX, "0 0 1 1 *")
        assert await run(schedules.pause, "nightly")
        assert await run(schedules.resume, "nightly")
        await run(schedules.run_now, "nightly", OUTBOX)
        assert [each.name for each in await run(schedules.all)] == ["nightly", "tick"]
        assert await run(schedules.due_in, [OUTBOX]) is not None
        assert await run(schedules.run_due, [OUTBOX]) is not None
        await run(schedules.remove, "nightly")
        assert (await session.scalars(select(func.count()).select_from(Letter))).one() > 1


@pytest.mark.only_on("sqlite")
def test_what_takes_a_session_says_how_it_is_awaited() -> None:
    session: Any = AsyncSession()
    calls: dict[str, Callable[[], object]] = {
        "pause": lambda: control.pause(session, Letter),
        "read_control": lambda: control.read_control(session, [Letter], owner="w"),
        "add": lambda: SCHEDULES.add(session, "nightly", OUTBOX, "0 0 1 1 *"),
        "due_in": lambda: SCHEDULES.due_in(session, [OUTBOX]),
    }

    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=r"await async_session\.run_sync\("):
            pytest.fail(f"{name}: {call()}")
