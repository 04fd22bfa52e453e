"""A listener: a function or a recorder, and which events it is told of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..sessions.transaction_end import TransactionEnd
from ..sessions.writer import Writer
from .event import Event

#: Called with an Event.
EventFunction: TypeAlias = Callable[[Event], object]

# The queue whose method is running. It is set only by queues that have listeners.
_calling: ContextVar[Any] = ContextVar("sa_jobqueue_calling_queue", default=None)


class Recorder(ABC):
    """Is told of every event twice: by the verb, and when the end of its transaction is known.

    So a recorder knows also of events that were rolled back, and of those whose COMMIT had no
    answer. An event without an end belongs to a process that died, or is still at work.
    """

    @abstractmethod
    def noted(self, event: Event, number: str, writer: Writer | None) -> None:
        """Note an event within the transaction of its verb; an error is the verb's own.

        Args:
            number: names the event, among those of all processes.
            writer: the connection of the verb; None: the event has no transaction.
        """

    @abstractmethod
    def ended(self, number: str, end: TransactionEnd) -> None:
        """Note how the transaction of an event has ended."""


@dataclass(frozen=True)
class Listener:
    """A function or a recorder, and what it is told of.

    Attributes:
        name: the event; None: all events, for a recorder.
        queue: the queue that it listens to; None: the class.
    """

    told: EventFunction | Recorder
    name: str | None
    queue: Any = None

    def hears(self, name: str) -> bool:
        """Tell whether an event of the method that is running is for this listener."""
        return self.name in (name, None) and self.queue in (None, _calling.get())


def calling_queue() -> Any:
    """Return the queue whose method is running, if that queue has listeners."""
    return _calling.get()


@contextmanager
def called_on(queue: Any) -> Iterator[None]:
    """Have the events inside of the block told as those of a queue's own methods."""
    token = _calling.set(queue)
    try:
        yield
    finally:
        _calling.reset(token)
