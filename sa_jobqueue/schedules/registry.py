"""The schedules that the queues of this process declare by ``queue.every()``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..errors import ArgumentError
from ..model.queue_name import mapping_of_queue, queue_name
from .declaration import Declaration, check_revision, declaration

F = TypeVar("F", bound=Callable[..., Any])

#: What each queue declares, by name.
_declarations: WeakKeyDictionary[Any, dict[str, Declaration]] = WeakKeyDictionary()

#: The expressions of schedules that have no name yet, by their calls.
_nameless: WeakKeyDictionary[Any, dict[Any, str]] = WeakKeyDictionary()


def declare_every(
    queue: Any, cron: str, *, name: str | None, revision: int, **given: Any
) -> Callable[[F], F]:
    """Declare a schedule of a queue; see :meth:`sa_jobqueue.JobQueue.every`."""

    def make(name: str) -> Declaration:
        return declaration(name, queue, cron, revision=revision, **given)

    def decorate(function: F) -> F:
        if name is None:
            _add(queue, make(_name_of(function)))
            nameless.pop(call, None)
        return function

    check_revision(revision)
    call, nameless = object(), _nameless.setdefault(queue, {})
    if name is not None:
        _add(queue, make(name))
    else:
        make("checked at the call")
        nameless[call] = cron
    return decorate


def declared_by(queues: Iterable[Any]) -> list[Declaration]:
    """Return the schedules that the queues declare."""
    return [each for queue in queues for each in _declarations.get(queue, {}).values()]


def declared_elsewhere(queues: Sequence[Any]) -> list[Declaration]:
    """Return the schedules that other JobQueues of the same tables and statuses declare."""
    if _elsewhere(queues):
        gc.collect()  # queues that nobody has any more declare nothing
    return _elsewhere(queues)


def names_declared() -> set[str]:
    """Return the names that any queue declares."""
    return {name for declared in list(_declarations.values()) for name in declared}


def refuse_nameless(queues: Iterable[Any]) -> None:
    """Refuse queues with a call of every() that has no name and decorates nothing.

    Raises:
        ArgumentError: names such a call.
    """
    for queue in queues:
        for cron in _nameless.get(queue, {}).values():
            raise ArgumentError(
                f"every({cron!r}) of {queue!r} declares nothing, since its schedule has no name: "
                "give name=, or let every() decorate a function, which names it"
            )


def _elsewhere(queues: Sequence[Any]) -> list[Declaration]:
    known = {(id(mapping_of_queue(each).table.metadata), queue_name(each)) for each in queues}
    return [
        each
        for other, declared in list(_declarations.items())
        if not any(other is queue for queue in queues)
        for each in declared.values()
        if (id(other.mapping.table.metadata), each.queue) in known
    ]


def _add(queue: Any, new: Declaration) -> None:
    declared = _declarations.setdefault(queue, {})
    if new.name in declared:
        raise ArgumentError(
            f"{queue!r} declares two schedules {new.name!r}: give one of them another name="
        )
    declared[new.name] = new


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ArgumentError(f"{function!r} has no name for its schedule: give every() a name=")
    return name
