"""The name of a queue, by which other tables, metrics and traces refer to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ArgumentError
from .mapping import QueueMapping, mapping_of
from .status import UNCLAIMED


def plain_queue(queue: Any) -> Any:
    """Return the JobQueue of a workflow's step, or in an AsyncJobQueue; all else as it is."""
    if isinstance(queue, type):  # it may have a column of such a name
        return queue
    return getattr(queue, "sync_queue", getattr(queue, "queue", queue))


def mapping_of_queue(queue: Any) -> QueueMapping:
    """Return the mapping of a mapped class, of a JobQueue or of a workflow's step.

    Raises:
        ArgumentError: it is no queue.
    """
    queue = plain_queue(queue)
    mapping = getattr(queue, "mapping", None)
    return mapping if isinstance(mapping, QueueMapping) else mapping_of(queue)


def queue_name(queue: Any) -> str:
    """Return a queue's name: ``email``, or ``film/cut`` for one that claims from a status ``cut``.

    Raises:
        ArgumentError: it is no queue.
    """
    mapping = mapping_of_queue(queue)
    queue = plain_queue(queue)
    usual = mapping.word(UNCLAIMED)
    ready = usual if isinstance(queue, type) else getattr(queue, "ready", usual)
    table = mapping.table.fullname
    return table if ready == usual else f"{table}/{ready}"


def queues_by_name(queues: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return the queues by the names that their metrics and spans have.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """
    if isinstance(queues, Mapping):
        return {name: plain_queue(queue) for name, queue in queues.items()}
    found: dict[str, Any] = {}
    for queue in map(plain_queue, queues):
        name = queue_name(queue)
        if name in found:
            raise ArgumentError(
                f"two queues are called {name!r}; give names of your own: {{'one': {queue!r}, ..}}"
            )
        found[name] = queue
    return found
