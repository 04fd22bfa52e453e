"""Add and remove listeners: functions by the names of their events, or for all of them.

The listeners of a mapped class are kept in its QueueMapping, with those of its parents, so a
verb only asks whether there are any. New jobs that a flush inserts, as by
``session.add(Email(..))``, are noted here. Metrics and traces listen by the names of queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import wraps
from inspect import iscoroutinefunction
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Mapper, object_session
from sqlalchemy.orm.attributes import instance_dict

from ..databases import database_of
from ..errors import ArgumentError
from ..model.keys import queues_by_name
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..model.mixins import QueueColumns
from ..sessions.writer import Writer
from .event import EVENTS, TOLD, Event, EventFunction, EventJob, Listener, called_on
from .notes import note, note_claimable

F = TypeVar("F", bound=EventFunction)
Q = TypeVar("Q")


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
    if name not in EVENTS:
        raise ArgumentError(f"{name!r} is no event; the events are {', '.join(EVENTS)}")
    if not callable(function) or iscoroutinefunction(function):
        raise ArgumentError(
            f"a listener is a plain function, not {function!r}. To await something, start a task "
            "with the event, as by loop.create_task(..)"
        )
    add_listener(target, function, name)


def listens_for(target: Any, name: str) -> Callable[[F], F]:
    """Decorate a function to have it listen; see :func:`listen`."""

    def decorate(function: F) -> F:
        listen(target, name, function)
        return function

    return decorate


def remove(target: Any, name: str | None, function: Callable[..., object]) -> None:
    """Stop calling a function that :func:`listen` was given with the same arguments.

    Raises:
        ArgumentError: it does not listen.
    """
    mapping, queue = _mapping_and_queue(target)
    listener = Listener(function, name, queue)
    if listener not in mapping.listeners:
        raise ArgumentError(f"{function!r} does not listen to {name!r} of {target!r}")
    for of_class in _with_subclasses(mapping):
        of_class.listeners = tuple(each for each in of_class.listeners if each != listener)
    if queue is not None and all(kept.queue is not queue for kept in mapping.listeners):
        for method in TOLD:
            vars(queue).pop(method, None)


def add_listener(target: Any, function: Callable[..., object], name: str | None) -> None:
    """Add a function to a class or a queue; see :class:`Listener`."""
    mapping, queue = _mapping_and_queue(target)
    if queue is not None:
        _note_calls(queue)
    elif name in (None, "after_enqueue"):
        watch_flushes(mapping.mapper)
    listener = Listener(function, name, queue)
    for of_class in _with_subclasses(mapping):
        of_class.listeners = (*of_class.listeners, listener)


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


_watched: WeakSet[type[Any]] = WeakSet()


@event.listens_for(QueueColumns, "after_mapper_constructed", propagate=True)
def _watch_notifying(mapper: Mapper[Any], class_: type[Any]) -> None:
    """Watch the flushes of a class that notifies: a process may only add jobs, and call no verb."""
    if getattr(class_, "__queue_args__", {}).get("notify"):
        watch_flushes(mapper)


def watch_flushes(mapper: Mapper[Any]) -> None:
    """Note the new jobs of a class, its parents and its subclasses from now on."""
    base = mapper.base_mapper.class_  # for all of them once
    if base not in _watched:
        _watched.add(base)
        event.listen(base, "after_insert", _inserted, propagate=True)


def _inserted(mapper: Mapper[Any], connection: Connection, entity: Any) -> None:
    mapping, session = any_mapping_of(mapper), object_session(entity)
    wanted = mapping.listeners or mapping.wakes
    if not wanted or not mapping.is_queue or session is None:
        return
    status = mapping.told(instance_dict(entity).get(mapping.attributes["status"]))
    if status not in (None, *mapping.ready):  # None: the default of the table
        return
    database = database_of(connection)
    in_autocommit = database.in_autocommit(connection)
    writer = Writer(session, connection, database, in_autocommit, mapper)
    if mapping.listeners:
        job = EventJob(tuple(mapper.primary_key_from_instance(entity)), status)
        with called_on(None):  # a queue's method may flush what others have added
            note(writer, mapping, Event("after_enqueue", "flush", mapping.entity, (job,), 1))
    if mapping.wakes:
        note_claimable(writer, mapping)


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
        for event_name, function in listeners(name).items():
            entity = getattr(queue, "entity", queue)
            if event_name != "after_enqueue":
                listen(queue, event_name, function)
            elif entity not in heard:
                heard.add(entity)
                listen(entity, event_name, function)


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
