"""Workflows in an event loop, by every async driver."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.workflow import NotWaiting, Workflow
from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    in_event_loop,
    make_async_engine,
    new_async_session,
)
from tests.contract.workflow.support import logged, statuses
from tests.videos import S, Video, add_videos, log, videos

SOON = timedelta(milliseconds=20)


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def async_engine(engine: Engine, db_url: URL, request: pytest.FixtureRequest) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, request.param)


def awaited() -> Workflow[Video]:
    """Make a workflow whose handlers are awaited."""
    workflow = Workflow(Video, S, final=[S.REJECTED])

    @workflow.step(S.UPLOADED, during=S.CHECKING, then=S.AT_FARM, branches=[S.REJECTED])
    async def check(video: Video) -> S | None:
        return S.REJECTED if video.title == "bad" else None

    workflow.waiting(S.AT_FARM, signals=[S.RENDERED])

    @workflow.step(S.RENDERED, during=S.PUBLISHING, then=S.PUBLISHED)
    async def publish(video: Video) -> None: ...

    workflow.on_transition(log)
    return workflow


async def work(engine: AsyncEngine, steps: Any, **options: Any) -> None:
    await AsyncWorker(engine, steps, drain=True, poll=SOON, reap_every=None, **options).run()


@in_event_loop
async def test_the_async_handlers_of_a_workflow_are_awaited(
    async_engine: AsyncEngine, session: Session
) -> None:
    workflow = awaited()
    video, _ = add_videos(session, "good", "bad")
    await work(async_engine, workflow, limit=2, concurrency=2)
    async with new_async_session(async_engine) as other:
        await other.run_sync(workflow.signal, video.id, S.RENDERED)
        await other.commit()
        with pytest.raises(NotWaiting):
            await other.run_sync(workflow.signal, video.id, S.RENDERED)

    await work(async_engine, workflow.steps[1])

    assert statuses(session) == {"good": "published", "bad": "rejected"}
    assert set(logged(session)) <= workflow.arrows


@in_event_loop
async def test_the_verbs_of_a_workflow_are_awaited(
    async_engine: AsyncEngine, session: Session
) -> None:
    workflow = videos()
    claimed, waiting = add_videos(session, "a", "b")
    waiting_id = waiting.id
    async with new_async_session(async_engine) as other:
        queue = AsyncJobQueue(workflow.steps[0].queue)
        (first,) = await queue.claim(other, owner="w")
        await queue.complete(other, first)
        # A plain JobQueue would leave the owner, as on a job that has ended.
        assert (first.id, first.status, first.owner) == (claimed.id, "checked", None)
        waiting = await other.get_one(Video, waiting_id)

        assert await other.run_sync(workflow.cancel, [first, waiting]) == [first, waiting]
        assert await other.run_sync(workflow.retry, waiting, S.RENDERED) == [waiting]
        assert not await other.run_sync(workflow.reap, max_runtime=timedelta(0))
        await other.commit()

    assert statuses(session) == {"a": "cancelled", "b": "rendered"}


@in_event_loop
async def test_a_step_whose_handler_is_a_plain_function_is_refused(
    async_engine: AsyncEngine,
) -> None:
    with pytest.raises(ArgumentError, match="make it async def"):
        await work(async_engine, videos())
