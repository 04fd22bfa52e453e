"""The schedules that the queues of this process declare by ``queue.every()``, and their checks."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ArgumentError
from ..model.keys import mapping_of_queue, queue_name
from .cron import Cron
from .table import CRON_LENGTH, NAME_LENGTH, QUEUE_LENGTH, ZONE_LENGTH
from .ticks import Missed
from .values import values_json

#: What each queue declares, by name.
_declarations: WeakKeyDictionary[Any, dict[str, Declaration]] = WeakKeyDictionary()


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
    if missed not in list(Missed):
        raise ArgumentError(f"missed= is 'skip', 'once' or 'all', not {missed!r}")
    _check_text(name, "name", NAME_LENGTH, "write it as in 'nightly report'")
    _check_text(
        cron,
        "cron expression",
        CRON_LENGTH,
        "write it as in '0 7 * * mon-fri', and make two schedules of a longer one",
    )
    _check_text(timezone, "time zone", ZONE_LENGTH, "write it as in 'Europe/Berlin'")
    _check_text(queue_name(queue), "queue", QUEUE_LENGTH, "give its table a shorter name")
    Cron(cron, timezone).after(datetime.fromisoformat("2000-01-01T00:00+00:00"))
    return Declaration(
        name=name,
        queue=queue_name(queue),
        cron=cron,
        timezone=timezone,
        values_json=values_json(mapping, {} if values is None else values),
        missed=Missed(missed),
        revision=revision,
    )


def declare_every(queue: Any, cron: str, *, name: str, revision: int, **given: Any) -> None:
    """Declare a schedule of a queue; see :meth:`sa_jobqueue.JobQueue.every`."""
    if type(revision) is not int or not 0 <= revision < 2**31:
        raise ArgumentError(f"revision= is a whole number, such as 2, not {revision!r}")
    new = declaration(name, queue, cron, revision=revision, **given)
    declared = _declarations.setdefault(queue, {})
    if name in declared:
        raise ArgumentError(
            f"{queue!r} declares two schedules {name!r}: give one of them another name="
        )
    declared[name] = new


def declared_for(queues: Sequence[Any]) -> list[Declaration]:
    """Return the schedules that JobQueues declare for these tables and statuses.

    A schedule inserts jobs of a table and a status, so it is no matter which of their JobQueues
    declares it, and which a worker has.
    """
    known = {(mapping_of_queue(each).table, queue_name(each)) for each in queues}

    def declaring() -> list[Any]:
        return [
            each
            for each in list(_declarations)
            if (mapping_of_queue(each).table, queue_name(each)) in known
        ]

    if any(each not in queues for each in declaring()):
        gc.collect()  # queues that nobody has any more declare nothing
    return [each for queue in declaring() for each in _declarations[queue].values()]


def _check_text(value: Any, what: str, most: int, way_out: str) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise ArgumentError(
            f"the {what} of a schedule is text, of 1 to {most} characters, not {value!r}: {way_out}"
        )
