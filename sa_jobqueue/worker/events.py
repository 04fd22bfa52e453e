"""The events that a worker makes itself: of handlers, and of its Owner's lock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..events.event import Event, EventJob, called_on
from ..events.notes import tell
from ..queue import JobQueue
from .in_hand import InHand


def tell_start(in_hand: InHand[Any]) -> None:
    """Tell that the handler of a job is about to be called."""
    queue, fence = in_hand.lane.queue, in_hand.fence
    status, dates = fence.token.status, tuple(fence.token.dates)
    job = EventJob(
        fence.identity, status, status, fence.owner, dates, in_hand.attempts, entity=in_hand.job
    )
    with called_on(queue):
        tell(queue.mapping, Event("after_start", "start", queue.entity, (job,), 1))


def tell_lock_lost(queues: Iterable[JobQueue[Any]]) -> None:
    """Tell that the worker's Owner has lost its lock: others may reap its claims."""
    for queue in queues:
        if queue.mapping.listeners:
            with called_on(queue):
                tell(queue.mapping, Event("after_lock_lost", "check", queue.entity))
