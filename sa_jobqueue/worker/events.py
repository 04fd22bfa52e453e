"""The events that a worker makes itself: a handler begins, and the owner's lock was lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..events.event import Event, EventJob
from ..events.listener import called_on
from ..events.notes import tell
from ..fence.token import Fence
from ..queue import JobQueue


def tell_start(queue: JobQueue[Any], fence: Fence, attempts: int | None) -> None:
    """Tell that the handler of a job is about to be called."""
    status, dates = fence.token.status, tuple(fence.token.dates)
    job = EventJob(fence.identity, status, status, fence.owner, dates, attempts)
    with called_on(queue):
        tell(queue.mapping, Event("after_start", "start", queue.entity, (job,), 1))


def tell_lock_lost(queues: Iterable[JobQueue[Any]]) -> None:
    """Tell that the worker's Owner has lost its lock: others may take its claims back."""
    for queue in queues:
        if queue.mapping.listeners:
            with called_on(queue):
                tell(queue.mapping, Event("after_lock_lost", "check", queue.entity))
