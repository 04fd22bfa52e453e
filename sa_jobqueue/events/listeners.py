"""Add and remove listeners: functions by the names of their events, and recorders of all.

The listeners of a mapped class are kept in its QueueMapping, with those of its parents, so a
verb only asks whether there are any.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from ..errors import ArgumentError
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from .event import EVENTS
from .flushed import watch_flushes
from .listener import EventFunction, Listener, Recorder, called_on

F = TypeVar("F", bound=EventFunction)
Q = TypeVar("Q")

#: The methods of a JobQueue, and of a workflow, that make events.
TOLD = (
    "enqueue",
    "claim",
    "claim_rows",
    "turn",
    "renew",
    "complete",
    "fail",
    "release",
    "cancel_claimed",
    "reap",
    "cancel",
    "retry",
    "reprioritize",
    "prune",
    "signal",
)


def listen(target: Any, name: str, function: EventFunction) -> None:
    """Have a function called with each Event of this name, once it is committed.

    Args:
        target: a mapped class with JobMixin, which stands for its subclasses too; or a
            JobQueue, whose listeners are called for its own methods.
        name: such as "after_claim"; see EVENTS.
        function: a plain function. It is called outside of transactions, in the thread of the
            verb; an error is logged.

    Raises:
        ArgumentError: no queue, no such event, or a function that has to be awaited.
    """
    _check(name, function)
    add_listener(target, function, name)


def listens_for(target: Any, name: str) -> Callable[[F], F]:
    """Decorate a function to have it listen; see :func:`listen`."""

    def decorate(function: F) -> F:
        listen(target, name, function)
        return function

    return decorate


def remove(target: Any, name: str, function: EventFunction) -> None:
    """Stop calling a function that :func:`listen` was given with the same arguments.

    Raises:
        ArgumentError: it does not listen.
    """
    remove_listener(target, function, name)


def add_listener(target: Any, told: EventFunction | Recorder, name: str | None) -> None:
    """Add a function, or a recorder of all events, to a class or a queue."""
    mapping, queue = _mapping_and_queue(target)
    if queue is not None:
        _note_calls(queue)
    elif name in (None, "after_enqueue"):
        watch_flushes(mapping.mapper)
    listener = Listener(told, name, queue)
    for of_class in _with_subclasses(mapping):
        of_class.listeners = (*of_class.listeners, listener)


def remove_listener(target: Any, told: EventFunction | Recorder, name: str | None) -> None:
    """Remove a function or a recorder again.

    Raises:
        ArgumentError: it does not listen.
    """
    mapping, queue = _mapping_and_queue(target)
    listener = Listener(told, name, queue)
    if listener not in mapping.listeners:
        raise ArgumentError(f"{told!r} does not listen to {name!r} of {target!r}")
    for of_class in _with_subclasses(mapping):
        listeners = list(of_class.listeners)
        if listener in listeners:
            listeners.remove(listener)
        of_class.listeners = tuple(listeners)
    if queue is not None and all(kept.queue is not queue for kept in mapping.listeners):
        for method in TOLD:
            vars(queue).pop(method, None)


def _check(name: str, function: Any) -> None:
    if name not in EVENTS:
        raise ArgumentError(f"{name!r} is no event; the events are {', '.join(EVENTS)}")
    if not callable(function) or iscoroutinefunction(function):
        raise ArgumentError(
            f"a listener is a plain function, not {function!r}. To await something, start a task "
            "with the event, as by loop.create_task(..)"
        )


def _mapping_and_queue(target: Any) -> tuple[QueueMapping, Any]:
    queue = getattr(target, "sync_queue", target)  # of an AsyncJobQueue
    mapping = getattr(queue, "mapping", None)
    if isinstance(mapping, QueueMapping):
        return mapping, queue
    return mapping_of(target), None


def _with_subclasses(mapping: QueueMapping) -> list[QueueMapping]:
    # All of them before any gets a listener: a new mapping takes those of its parent.
    return [any_mapping_of(mapper) for mapper in mapping.mapper.self_and_descendants]


def copy_of(queue: Q) -> Q:
    """Copy a queue; wrap calls of the copy in :func:`called_on` with the queue."""
    found = copy(queue)
    for name in TOLD:
        vars(found).pop(name, None)  # it would call the method of the queue
    return found


def _note_calls(queue: Any) -> None:
    """Have a queue's methods note on which queue they are called, from its first listener on.

    A queue without listeners pays nothing for this.
    """
    for name in TOLD:
        if hasattr(queue, name) and name not in vars(queue):
            vars(queue)[name] = _noting(queue, getattr(queue, name))


def _noting(queue: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with called_on(queue):
            return method(*args, **named)

    return call
