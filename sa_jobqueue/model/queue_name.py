"""The name of a queue, by which other tables refer to it."""

from __future__ import annotations

from typing import Any

from .mapping import QueueMapping, mapping_of
from .status import UNCLAIMED


def mapping_of_queue(queue: Any) -> QueueMapping:
    """Return the mapping of a mapped class, of a JobQueue or of a workflow's step.

    Raises:
        ArgumentError: it is no queue.
    """
    queue = getattr(queue, "queue", queue)  # of a workflow's step
    mapping = getattr(queue, "mapping", None)
    return mapping if isinstance(mapping, QueueMapping) else mapping_of(queue)


def queue_name(queue: Any) -> str:
    """Return a queue's name: ``email``, or ``film/cut`` for one that claims from a status ``cut``.

    Raises:
        ArgumentError: it is no queue.
    """
    mapping = mapping_of_queue(queue)
    queue = getattr(queue, "queue", queue)
    usual = mapping.word(UNCLAIMED)
    ready = getattr(queue, "ready", usual) if hasattr(queue, "mapping") else usual
    table = mapping.table.fullname
    return table if ready == usual else f"{table}/{ready}"
