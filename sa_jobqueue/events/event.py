"""What a listener is told: one event, and each of its jobs; and who is a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

#: The names of the events, each with the verbs that it tells of.
EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "after_enqueue": ("enqueue", "flush"),
        "after_claim": ("claim",),
        "after_start": ("start",),
        "after_renew": ("renew",),
        "after_finish": ("complete",),
        "after_fail": ("fail",),
        "after_release": ("release",),
        "after_cancel": ("cancel", "cancel_claimed"),
        "after_lost": ("renew", "complete", "fail", "release", "cancel_claimed"),
        "after_reap": ("reap",),
        "after_change": ("retry", "signal", "reprioritize", "prune", "start_round"),
        "after_lock_lost": ("check",),
    }
)

EVENT_OF_VERB: Mapping[str, str] = MappingProxyType(
    {verb: name for name, verbs in EVENTS.items() if name != "after_lost" for verb in verbs}
)

#: The methods of a JobQueue, and of a workflow, that make events; some have not all of them.
TOLD = (*EVENT_OF_VERB, "claim_rows", "turn")


@dataclass(frozen=True)
class EventJob:
    """A job that an event tells of.

    Attributes:
        key: the values of its primary key.
        before: the status that it had before, in the table's own word; None where the verb
            does not know it, or leaves the status alone.
        status: the status that it has now; None where only the database knows it.
        fence_status: the status that the claim wrote; None: the job was not claimed.
        owner: the owner that the claim wrote.
        owner_dates: every ``owner_date`` that the claim has had, the newest last.
        unmarked: the claim wrote nothing, and has no date; its locks are the fence.
        entity: the mapped object, as the handler gets it; only of after_start.
        attempts: how often it was tried, this attempt included; None: not known, or the
            class does not count.
    """

    key: tuple[Any, ...]
    status: str | None = None
    fence_status: str | None = None
    owner: str | None = None
    owner_dates: tuple[datetime, ...] = ()
    attempts: int | None = None
    unmarked: bool = False
    before: str | None = None
    entity: Any = field(default=None, repr=False, compare=False)

    @property
    def owner_date(self) -> datetime | None:
        """The time of the claim, or of its last renewal."""
        return self.owner_dates[-1] if self.owner_dates else None


@dataclass(frozen=True)
class Event:
    """What a verb did to some jobs.

    Attributes:
        name: the event, such as "after_claim"; see EVENTS.
        verb: the verb, such as "claim"; after_lost: the verb that found the claims lost.
        entity: the mapped class.
        jobs: the jobs; empty where the verb does not know their keys.
        count: the number of jobs, or None where the database does not tell.
        queue: the queue whose method was called, if that queue has listeners of its own.
        error: the text of a failure, or the reason of a reap or of a cancel.
        at: the time of the verb by the database's clock, where the verb knows it.
    """

    name: str
    verb: str
    entity: type[Any]
    jobs: tuple[EventJob, ...] = ()
    count: int | None = None
    queue: Any = None
    error: str | None = None
    at: datetime | None = None

    @property
    def number(self) -> int:
        """The number of jobs, as far as it is known."""
        return len(self.jobs) if self.count is None else self.count


#: Called with an Event.
EventFunction: TypeAlias = Callable[[Event], object]

# The queue whose method is running. It is set only by queues that have listeners.
_calling: ContextVar[Any] = ContextVar("sa_jobqueue_calling_queue", default=None)


@dataclass(frozen=True)
class Listener:
    """A function, and what it is told of.

    Attributes:
        function: called with an Event after its commit; without a `name`, with all events, each
            within the transaction of its verb and with the Writer, None where there is none.
        name: the event; None: all.
        queue: the queue that it listens to; None: the class.
    """

    function: Callable[..., object]
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
