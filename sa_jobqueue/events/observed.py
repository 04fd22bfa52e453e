"""What metrics and traces share: listeners by the names of queues, and what is known of jobs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, Generic, TypeVar

from ..model.queue_name import queues_by_name
from .listener import EventFunction
from .listeners import listen

V = TypeVar("V")

#: So many jobs are remembered that were claimed, or begun, and whose end nobody told.
REMEMBERED = 10_000


def observe(
    queues: Mapping[str, Any] | Iterable[Any],
    listeners: Callable[[str], Mapping[str, EventFunction]],
) -> None:
    """Have functions called with the events of queues, from now on.

    New jobs belong to no queue: their event is told once for each class.

    Args:
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
        listeners: returns the functions for a queue's name, by the names of the events.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """
    heard: set[type[Any]] = set()
    for name, queue in queues_by_name(queues).items():
        for event, function in listeners(name).items():
            entity = getattr(queue, "entity", queue)
            if event != "after_enqueue":
                listen(queue, event, function)
            elif entity not in heard:
                heard.add(entity)
                listen(entity, event, function)


class Remembered(Generic[V]):
    """What is known of jobs by their keys; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, V] = OrderedDict()
        self._lock = Lock()

    def remember(self, key: Any, value: V) -> V | None:
        """Remember a value; return the one before."""
        with self._lock:
            before = self._known.pop(key, None)
            self._known[key] = value
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return before

    def forget(self, key: Any) -> V | None:
        """Return what is known, which is not known any more then."""
        with self._lock:
            return self._known.pop(key, None)
