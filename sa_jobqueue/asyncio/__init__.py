"""The same verbs, queues and worker for an AsyncSession and an AsyncEngine.

::

    async with AsyncSession(engine, expire_on_commit=False) as session:
        emails = await claim(session, Email, owner="mailer-1", limit=100)
        await session.commit()
        for email in emails:
            await send(email)
        await complete(session, emails)
        await session.commit()

Nothing is done twice: each verb is the one of :mod:`sa_jobqueue`, run by
``AsyncSession.run_sync``. What has no session, such as ``fence_of``, and the
errors, are there. See docs/asyncio.md.
"""

from .queues import AsyncJobQueue
from .verbs import (
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
    finish_rate,
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
    waiting_time,
)
from .worker import AsyncWorker
from .workflows import AsyncWorkflow

__all__ = [
    "AsyncJobQueue",
    "AsyncWorker",
    "AsyncWorkflow",
    "advisory_session",
    "cancel",
    "cancel_claimed",
    "claim",
    "claimed_by",
    "complete",
    "connection_owner",
    "count_by_status",
    "enqueue",
    "fail",
    "finish_rate",
    "owner_state",
    "position",
    "positions",
    "prune",
    "queue_stats",
    "reap",
    "release",
    "renew",
    "reprioritize",
    "retry",
    "round_progress",
    "start_round",
    "waiting_time",
]
