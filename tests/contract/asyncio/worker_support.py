"""Async workers that drain a queue, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue.asyncio import AsyncWorker
from tests.models import Email, Task

SOON = timedelta(milliseconds=20)


def draining(
    engine: AsyncEngine, queue: Any, handler: Callable[[Any], Any], **options: Any
) -> AsyncWorker[Any]:
    """Make a worker that drains a queue and pauses only briefly."""
    if getattr(queue, "sync_queue", queue).mapping.has("run_at"):
        options = {"backoff": lambda attempts: SOON, **options}
    options = {"drain": True, "poll": SOON, **options}
    return AsyncWorker(engine, queue, handler, **options)


def states(session: Session) -> dict[str, tuple[str, int, str | None]]:
    found = session.scalars(select(Task))
    return {task.name: (task.status, task.attempts, task.last_error) for task in found}


def statuses(session: Session) -> dict[str, str]:
    found = session.scalars(select(Email))
    return {email.recipient: email.status for email in found}


async def nothing(job: object) -> None:
    pass
