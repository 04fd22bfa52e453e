"""What only an AsyncWorker does; tests/contract/worker has what it does as a Worker does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.asyncio import AsyncJobQueue, AsyncWorker
from sa_jobqueue.workflow import NotWaiting, Workflow
from tests.contract.asyncio.support import (
    in_event_loop,
    new_async_session,
)
from tests.contract.worker.driver import Workers
from tests.contract.workflow.support import SOON, statuses
from tests.models import Task
from tests.videos import S, Video, add_videos, videos


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
async def test_the_async_handlers_of_a_workflow_are_awaited(
    async_engine: AsyncEngine, session: Session
) -> None:
    workflow = Workflow(Video, S, final=[S.REJECTED])

    @workflow.step(S.UPLOADED, during=S.CHECKING, then=S.AT_FARM, branches=[S.REJECTED])
    async def check(video: Video) -> S | None:
        return S.REJECTED if video.title == "bad" else None

    workflow.waiting(S.AT_FARM, signals=[S.PUBLISHED])
    video, _ = add_videos(session, "good", "bad")

    await AsyncWorker(async_engine, workflow, drain=True, poll=SOON, limit=2, concurrency=2).run()
    async with new_async_session(async_engine) as other:
        await other.run_sync(workflow.signal, video.id, S.PUBLISHED)
        await other.commit()
        with pytest.raises(NotWaiting):
            await other.run_sync(workflow.signal, video.id, S.PUBLISHED)

    assert statuses(session) == {"good": "published", "bad": "rejected"}


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
        await AsyncWorker(async_engine, videos(), drain=True).run()
