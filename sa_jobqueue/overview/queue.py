"""What an overview takes for a queue."""

from __future__ import annotations

from typing import Any

from ..model.queue_name import plain_queue
from ..queue import JobQueue


def job_queue_of(queue: Any) -> JobQueue[Any]:
    """Return the JobQueue of a mapped class or of a workflow's step; a JobQueue as it is.

    Raises:
        ArgumentError: it is no queue.
    """
    found = plain_queue(queue)
    return found if isinstance(found, JobQueue) else JobQueue(found)
