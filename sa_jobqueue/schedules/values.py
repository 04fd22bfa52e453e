"""The values of a job: JSON in the row of its schedule, and attributes of the job.

JSON has no dates, times, decimal numbers or UUIDs. They are written as text, which is converted to
the column's own type when the job is inserted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Enum, LargeBinary, TypeDecorator

from ..errors import ArgumentError
from ..model.mapping import QueueMapping

#: What an INSERT by enqueue() or a claim writes: other values would make no job that is claimed.
_OURS = ("status", "owner", "owner_date")

#: How text becomes a value of a column, and how this text looks.
_FROM_TEXT: dict[type, tuple[Callable[[str], Any], str]] = {
    datetime: (datetime.fromisoformat, "2030-01-31T07:00:00+00:00"),
    date: (date.fromisoformat, "2030-01-31"),
    time: (time.fromisoformat, "07:00:00"),
    Decimal: (Decimal, "12.50"),
    UUID: (UUID, "12345678-1234-5678-1234-567812345678"),
}

#: Which values of JSON a column of a plain type takes.
_TAKES: dict[Any, Callable[[Any], bool]] = {
    str: lambda value: type(value) is str,
    int: lambda value: type(value) is int,
    float: lambda value: type(value) in (float, int),
    bool: lambda value: value in (False, True),
}


def values_json(mapping: QueueMapping, values: Mapping[str, Any]) -> str:
    """Return the values of a job as JSON.

    Raises:
        ArgumentError: the values are no attributes of the class, no JSON, or not of the type
            of their columns.
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"values= maps attributes of {mapping} to their values, as in {{'kind': 'digest'}}, "
            f"and is not {values!r}"
        )
    for name in (mapping.attributes.get(role) for role in _OURS):
        if name is not None and name in values:
            raise ArgumentError(
                f"values= has {name!r}, which the queue writes: a job has the status that its "
                "queue claims from, and no owner"
            )
    try:
        text = json.dumps(dict(values), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the values of a schedule are JSON, with dates as ISO text: {error}"
        ) from error
    job_values(mapping, text)
    return text


def job_values(mapping: QueueMapping, text: str) -> dict[str, Any]:
    """Return the attributes of a job, each as its column takes it.

    Raises:
        ArgumentError: the class has no such column, or a column does not take its value.
    """
    values: dict[str, Any] = json.loads(text)
    unknown = sorted(values.keys() - set(mapping.mapper.columns.keys()))
    if unknown:
        raise ArgumentError(
            f"{mapping} has no column {', '.join(unknown)}: values= takes the attributes of its "
            "columns"
        )
    return {name: _value(mapping, name, value) for name, value in values.items()}


def _value(mapping: QueueMapping, name: str, value: Any) -> Any:
    kind = mapping.mapper.columns[name].type
    if value is None:
        return None
    if isinstance(kind, Enum):
        return _one_of(kind.enums, mapping, name, value)
    python_type = _python_type(kind)
    if python_type is timedelta or isinstance(kind, LargeBinary):
        raise ArgumentError(
            f"{mapping}.{name} takes no value that JSON can have: leave it out of values=, and "
            "give the column a default"
        )
    if python_type not in _FROM_TEXT:
        return _plain(kind, python_type, mapping, name, value)
    found = _from_text(python_type, mapping, name, value)
    if name in mapping.time_keys and found.tzinfo is None:
        raise ArgumentError(f"{name}={value!r} has no time zone; write it as in {value}+00:00")
    return found


def _one_of(words: list[str], mapping: QueueMapping, name: str, value: Any) -> Any:
    if value not in words:
        raise ArgumentError(f"{mapping}.{name} is one of {', '.join(words)}, not {value!r}")
    return value


def _python_type(kind: Any) -> Any:
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def _plain(kind: Any, python_type: Any, mapping: QueueMapping, name: str, value: Any) -> Any:
    """Refuse a value of another type than its column's; a TypeDecorator may take any value."""
    takes = _TAKES.get(python_type)
    if takes is not None and not isinstance(kind, TypeDecorator) and not takes(value):
        raise ArgumentError(
            f"{mapping}.{name} takes values of the type {python_type.__name__}, not {value!r}"
        )
    return value


def _from_text(python_type: type, mapping: QueueMapping, name: str, value: Any) -> Any:
    convert, example = _FROM_TEXT[python_type]
    numeric = python_type is Decimal and type(value) in (int, float)
    try:
        if not isinstance(value, str) and not numeric:
            raise ValueError
        return convert(str(value))
    except (ValueError, ArithmeticError) as error:
        raise ArgumentError(
            f"{mapping}.{name} is a {python_type.__name__}, which is text as in {example!r}, and "
            f"not {value!r}"
        ) from error
