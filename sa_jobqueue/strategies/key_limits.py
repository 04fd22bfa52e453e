"""The limits of serial keys: how serial_by=, limit_by= and on_retry= are read.

::

    JobQueue(Email, serial_by=Email.account_id)                  # one job at a time, in order
    JobQueue(Email, limit_by={Email.account_id: 3})              # at most three at a time
    JobQueue(Email, serial_by=Email.account_id, limit_by={(Email.region, Email.host): 5})

A serial key is the value of a column, or of several columns given as a tuple. A job
with NULL in one of them has no serial key, and no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ArgumentError
from ..model.mapping import QueueMapping

#: What others of its serial key do while a job is in its retry delay: wait for it, or go on.
WAIT, SKIP = "wait", "skip"


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """How many jobs of a serial key may be claimed at a time.

    Attributes:
        columns: the attributes whose values are the serial key.
        most: the number.
        serial: the jobs of a key are claimed in their order, one by one.
    """

    columns: tuple[InstrumentedAttribute[Any], ...]
    most: int
    serial: bool = False

    def __str__(self) -> str:
        names = [column.key for column in self.columns]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"


def key_limits(
    mapping: QueueMapping, serial_by: Any, limit_by: Mapping[Any, int] | None, on_retry: str
) -> tuple[KeyLimit, ...]:
    """Read the arguments of a queue.

    Raises:
        ArgumentError: an argument is wrong, or needs a mixin that the class does not have.
    """
    limits = list(_limits(mapping, serial_by, limit_by))
    _check_on_retry(mapping, serial_by, on_retry)
    return tuple(limits)


def arguments_text(limits: tuple[KeyLimit, ...], on_retry: str) -> str:
    """Write limits as the arguments that make them; empty where there are none."""
    serial = [f"serial_by={limit}" for limit in limits if limit.serial]
    counted = ", ".join(f"{limit}: {limit.most}" for limit in limits if not limit.serial)
    words = [*serial, *([f"limit_by={{{counted}}}"] if counted else [])]
    if on_retry != WAIT:
        words.append(f"on_retry={on_retry!r}")
    return "".join(f", {word}" for word in words)


def _limits(
    mapping: QueueMapping, serial_by: Any, limit_by: Mapping[Any, int] | None
) -> Iterator[KeyLimit]:
    if serial_by is not None:
        yield KeyLimit(_columns(mapping, "serial_by", serial_by), 1, serial=True)
    if limit_by is None:
        return
    if not isinstance(limit_by, Mapping) or not limit_by:
        raise ArgumentError(
            f"limit_by= takes a dict, as in {{{mapping}.account_id: 3}}, not {limit_by!r}"
        )
    for key, most in limit_by.items():
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ArgumentError(f"a limit of limit_by= is a number, at least 1: {most!r}")
        yield KeyLimit(_columns(mapping, "limit_by", key), most)


def _columns(
    mapping: QueueMapping, option: str, key: Any
) -> tuple[InstrumentedAttribute[Any], ...]:
    given = key if isinstance(key, tuple) else (key,)
    if not given:
        raise ArgumentError(f"{option}= names no column of {mapping}")
    return tuple(_column(mapping, option, attribute) for attribute in given)


def _column(mapping: QueueMapping, option: str, given: Any) -> InstrumentedAttribute[Any]:
    mappers: list[Any] = list(mapping.mapper.iterate_to_root())
    known = isinstance(given, InstrumentedAttribute) and given.parent in mappers
    column = mapping.mapper.columns.get(given.key) if known else None
    if column is None:
        raise ArgumentError(
            f"{option}= takes attributes of {mapping}, as in {mapping}.account_id, "
            f"or a tuple of them, not {given!r}"
        )
    if getattr(column, "table", None) is not mapping.table:
        raise ArgumentError(
            f"{option}= needs columns of {mapping.table.description!r}, the table that holds the "
            f"status, and {mapping}.{given.key} is in another table: keep the key in "
            f"{mapping.table.description!r} too"
        )
    attribute: InstrumentedAttribute[Any] = getattr(mapping.entity, given.key)
    return attribute


def _check_on_retry(mapping: QueueMapping, serial_by: Any, on_retry: str) -> None:
    if on_retry not in (WAIT, SKIP):
        raise ArgumentError(f"on_retry= is {WAIT!r} or {SKIP!r}, not {on_retry!r}")
    if on_retry == WAIT:
        return
    if serial_by is None:
        raise ArgumentError(
            "on_retry= decides whether the next jobs of a key wait while a failed job is in its "
            "retry delay; without serial_by= they never wait: leave on_retry= out"
        )
    if not mapping.has("attempts"):
        raise ArgumentError(
            f"on_retry='skip' passes over jobs in their retry delay, and jobs of {mapping} have "
            "no retry delay: add RetryMixin"
        )
