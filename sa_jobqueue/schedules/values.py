"""The values of a job: JSON in the row of its schedule, and attributes of the job.

JSON has no dates, times, decimal numbers or UUIDs. They are written as text, which is converted to
the column's own type when the job is inserted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import JSON, Enum, Interval, TypeDecorator

from ..errors import ArgumentError
from ..model.columns import FROM_TEXT
from ..model.mapping import QueueMapping

#: What an INSERT by enqueue() or a claim writes: other values would make no job that is claimed.
_OURS = ("status", "owner", "owner_date")


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
    if value is None or isinstance(kind, Enum | JSON):
        return value
    try:
        wanted = kind.python_type
    except NotImplementedError:
        return value
    found: Any
    try:
        found = FROM_TEXT[wanted](str(value)) if wanted in FROM_TEXT else value
    except (ValueError, ArithmeticError):
        found = None
    fits = isinstance(found, (float, int) if wanted is float else wanted)
    takes_any = isinstance(kind, TypeDecorator) and not isinstance(kind, Interval)
    if not fits and (found is None or not takes_any):
        raise ArgumentError(
            f"{mapping}.{name} takes values of the type {wanted.__name__}, not {value!r}: write "
            "dates and times in ISO 8601, and numbers with decimal places and UUIDs as text. A "
            "column of a type that JSON and text cannot have gets its value by a default"
        )
    if name in mapping.time_keys and found.tzinfo is None:
        raise ArgumentError(f"{name}={value!r} has no time zone; write it as in {value}+00:00")
    return found
