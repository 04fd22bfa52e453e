"""How many jobs of one key may be claimed: what serial_by=, limit_by= and on_retry= say.

::

    JobQueue(Email, serial_by=Email.account_id)                  # one, in their order
    JobQueue(Email, limit_by={Email.account_id: 3})              # three
    JobQueue(Email, serial_by=Email.account_id, limit_by={(Email.region, Email.host): 5})

A key is the value of a column, or of several that are given as a tuple. A job with
NULL in one of them has no key, and no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ArgumentError
from ..model.mapping import QueueMapping

#: What may come before a job that waits for its retry: nothing of its key, or anything.
WAIT, SKIP = "wait", "skip"


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """How many jobs of a key may be claimed at a time.

    Attributes:
        columns: the attributes whose values are the key.
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
        ArgumentError: what cannot be.
    """
    limits = list(_limits(mapping, serial_by, limit_by))
    _check_on_retry(mapping, serial_by, on_retry)
    return tuple(limits)


def said(limits: tuple[KeyLimit, ...], on_retry: str) -> str:
    """Say limits as the arguments that make them; nothing where there are none."""
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
    return tuple(_column(mapping, option, one) for one in given)


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
            f"status, and {mapping}.{given.key} is in another one: keep the key there too"
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
            "on_retry= says what a job that waits for its retry does to those behind it, and "
            "without serial_by= none is behind it: leave it out"
        )
    if not (mapping.has("attempts") and mapping.has("run_at")):
        raise ArgumentError(
            f"on_retry='skip' passes over jobs that wait for their retry, and those of {mapping} "
            "wait for nothing: add RetryMixin and ScheduleMixin"
        )
