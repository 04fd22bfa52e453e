"""The parts of a schedule, and their checks before it is written to the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import ArgumentError
from ..model.queue_name import mapping_of_queue, queue_name
from .cron import Cron
from .table import CRON_LENGTH, NAME_LENGTH, QUEUE_LENGTH, ZONE_LENGTH
from .ticks import Missed
from .values import values_json


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


def check_revision(revision: int) -> None:
    """Refuse a revision that is not valid for a declaration in the code.

    Raises:
        ArgumentError: it is no whole number that the column can hold.
    """
    if type(revision) is not int or not 0 <= revision < 2**31:
        raise ArgumentError(f"revision= is a whole number, such as 2, not {revision!r}")


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
