"""What an overview takes for a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from ..model.mapping import mapping_of
from ..model.queue_name import plain_queue
from ..queue import JobQueue
from .schema import has_table


def job_queue_of(queue: Any) -> JobQueue[Any]:
    """Return the JobQueue of a mapped class or of a workflow's step; a JobQueue as it is.

    Raises:
        ArgumentError: it is no queue, or its class has no JobMixin, and so no status to show.
    """
    found = plain_queue(queue)
    made = found if isinstance(found, JobQueue) else JobQueue(found)
    mapping_of(made.mapping.mapper)
    return made


def queues_there(
    connection: Connection, queues: Mapping[str, JobQueue[Any]]
) -> dict[str, JobQueue[Any]]:
    """Return the queues whose tables are there, as of the last minute."""
    return {
        name: queue for name, queue in queues.items() if has_table(connection, queue.mapping.table)
    }
