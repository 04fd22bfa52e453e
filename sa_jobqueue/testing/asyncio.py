"""Handle what is due in the tests of applications, with handlers that are awaited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.ext.asyncio import async_sessionmaker

from ..asyncio.verbs import AnyAsyncSession, AsyncJobQueue, async_session_of
from ..asyncio.worker import AwaitedCalls, SyncSessions, sync_queues
from ..queue import JobQueue
from ..sessions.transactions import routed_to_writes
from ..worker import Lane
from ..worker.lanes import lanes_of
from .run_all import HandledJob, Joined, delay_of, handle_all


async def run_all(
    session: AnyAsyncSession,
    queue: JobQueue[Any]
    | AsyncJobQueue[Any]
    | Lane[Any]
    | Iterable[JobQueue[Any] | AsyncJobQueue[Any] | Lane[Any]],
    *,
    raising: bool = True,
) -> list[HandledJob]:
    """Call the handlers of all jobs that are due, as an AsyncWorker does, and finish the jobs.

    As :func:`sa_jobqueue.testing.run_all`, for an AsyncSession and ``async def`` handlers.
    """
    session = async_session_of(session)
    lanes = lanes_of(sync_queues(queue), None)
    await session.flush()
    route = routed_to_writes(lanes[0].queue.mapping.mapper)
    connection = await session.connection(bind_arguments=route)
    opened = async_sessionmaker(
        connection, class_=type(session), join_transaction_mode="create_savepoint"
    )
    sync = connection.sync_connection
    assert sync is not None  # it is open
    calls = AwaitedCalls(Joined(sync, SyncSessions(opened)), delay_of)
    calls.check(lanes)
    calls.note_caller()
    try:
        return await connection.run_sync(handle_all, lanes, calls, raising=raising)
    finally:
        session.expire_all()
