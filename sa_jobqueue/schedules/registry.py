"""The schedules that the queues of this process declare by ``queue.every()``, and their checks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..errors import ArgumentError
from ..model.queue_name import mapping_of_queue, queue_name
from .cron import Cron
from .table import CRON_LENGTH, NAME_LENGTH, QUEUE_LENGTH, ZONE_LENGTH
from .ticks import Missed
from .values import values_json

F = TypeVar("F", bound=Callable[..., Any])

#: What each queue declares, by name.
_declarations: WeakKeyDictionary[Any, dict[str, Declaration]] = WeakKeyDictionary()

#: The expressions of schedules that have no name yet, by their calls.
_nameless: WeakKeyDictionary[Any, dict[Any, str]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A schedule as the code declares it."""

    name: str
    queue: str
    cron: str
    timezone: str
    values_json: str
    missed: Missed
    revision: int | None

    @property
    def columns(self) -> dict[str, Any]:
        """The values for its row, without the ticks."""
        return {**vars(self), "missed": self.missed.value}


def declaration(
    name: str,
    queue: Any,
    cron: str,
    *,
    timezone: str,
    values: Mapping[str, Any] | None,
    missed: str,
    revision: int | None,
) -> Declaration:
    """Check the parts of a schedule, and return its declaration.

    Raises:
        ArgumentError: the name is empty or too long, the expression or the time zone is not
            valid, the values are no attributes of the queue's class or no JSON, or something is
            of another type.
    """
    mapping = mapping_of_queue(queue)
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH:
        raise ArgumentError(f"the name of a schedule has 1 to {NAME_LENGTH} characters: {name!r}")
    if missed not in list(Missed):
        raise ArgumentError(f"missed= is 'skip', 'once' or 'all', not {missed!r}")
    _check_text(
        cron,
        "cron expression",
        CRON_LENGTH,
        "write it as in '0 7 * * mon-fri', and make two schedules of a longer one",
    )
    _check_text(timezone, "time zone", ZONE_LENGTH, "write it as in 'Europe/Berlin'")
    Cron(cron, timezone).after(datetime.fromisoformat("2000-01-01T00:00+00:00"))
    return Declaration(
        name=name,
        queue=_checked_queue_name(queue),
        cron=cron,
        timezone=timezone,
        values_json=values_json(mapping, {} if values is None else values),
        missed=Missed(missed),
        revision=revision,
    )


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

    if type(revision) is not int or not 0 <= revision < 2**31:
        raise ArgumentError(f"revision= is a whole number, such as 2, not {revision!r}")
    call, nameless = object(), _nameless.setdefault(queue, {})
    if name is not None:
        _add(queue, make(name))
    else:
        make("checked at the call")
        nameless[call] = cron
    return decorate


def declared_for(queues: Sequence[Any]) -> list[Declaration]:
    """Return the schedules that JobQueues declare for these tables and statuses.

    A schedule inserts jobs of a table and a status, so it is no matter which of their JobQueues
    declares it, and which a worker has.
    """
    of_queues = [_declarations[each].values() for each in _same(_declarations, queues)]
    return [each for declared in of_queues for each in declared]


def refuse_nameless(queues: Sequence[Any]) -> None:
    """Refuse a call of every(), for these tables and statuses, that names and decorates nothing.

    Raises:
        ArgumentError: names such a call.
    """
    for queue in _same(_nameless, queues):
        for cron in _nameless[queue].values():
            raise ArgumentError(
                f"every({cron!r}) of {queue!r} declares nothing, since its schedule has no name: "
                "give name=, or let every() decorate a function, which names it"
            )


def _same(declaring: Mapping[Any, Any], queues: Sequence[Any]) -> list[Any]:
    """Return those that have the table and the status of one of the queues."""
    known = {(mapping_of_queue(each).table, queue_name(each)) for each in queues}

    def is_same(each: Any) -> bool:
        return (mapping_of_queue(each).table, queue_name(each)) in known

    if any(each not in queues and is_same(each) for each in list(declaring)):
        gc.collect()  # queues that nobody has any more declare nothing
    return [each for each in list(declaring) if is_same(each)]


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


def _check_text(value: Any, what: str, most: int, way_out: str) -> None:
    if not isinstance(value, str) or len(value) > most:
        raise ArgumentError(
            f"the {what} of a schedule is text, of at most {most} characters, not {value!r}: "
            f"{way_out}"
        )


def _checked_queue_name(queue: Any) -> str:
    name = queue_name(queue)
    if len(name) > QUEUE_LENGTH:
        raise ArgumentError(
            f"to have schedules, the name of a queue has at most {QUEUE_LENGTH} characters: give "
            f"the table of {queue!r} a shorter name than {name!r}"
        )
    return name
