"""Primary keys as a log keeps them: column by column, each with the kind of its values.

::

    [(1, "a"), (2, "b"), (3, "c")]  ->  [{"ints": [1, 3]}, {"str": ["a", "b", "c"]}]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from ...errors import ArgumentError

Key = tuple[Any, ...]

#: How a value is written, and how it is read again, by its type.
_KINDS: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: (int, int),
    str: (str, str),
    UUID: (lambda value: value.hex, UUID),
    Decimal: (str, Decimal),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    bytes: (bytes.hex, bytes.fromhex),
}
_READ = {kind.__name__: read for kind, (_, read) in _KINDS.items()}

#: Integers in a row without gaps: the first and how many.
_RANGE = "ints"


def written_keys(keys: Sequence[Key]) -> list[Any]:
    """Write keys as JSON.

    Raises:
        ArgumentError: values of a type that a log does not keep, or of several types.
    """
    return [_written(values) for values in zip(*keys, strict=True)]


def read_keys(columns: Sequence[Mapping[str, Any]]) -> list[Key]:
    """Read keys again."""
    return list(zip(*map(_read, columns), strict=True))


def _written(values: Sequence[Any]) -> dict[str, Any]:
    kinds = set(map(type, values))
    if len(kinds) > 1 or not kinds <= _KINDS.keys():
        raise ArgumentError(
            f"a log keeps keys of one of the types {', '.join(sorted(_READ))}, and all of a "
            f"column alike; these are {', '.join(sorted(kind.__name__ for kind in kinds))}"
        )
    (kind,) = kinds
    if kind is int and values == tuple(range(values[0], values[0] + len(values))):
        return {_RANGE: [values[0], len(values)]}
    write, _ = _KINDS[kind]
    return {kind.__name__: list(map(write, values))}


def _read(column: Mapping[str, Any]) -> Sequence[Any]:
    ((kind, values),) = column.items()
    if kind == _RANGE:
        first, count = values
        return range(first, first + count)
    return list(map(_READ[kind], values))
