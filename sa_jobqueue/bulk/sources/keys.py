"""Encode primary keys for a log: column by column, each with the type of its values.

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

#: By type: how a value is encoded, and how it is decoded.
_CODECS: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: (int, int),
    str: (str, str),
    UUID: (lambda value: value.hex, UUID),
    Decimal: (str, Decimal),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    bytes: (bytes.hex, bytes.fromhex),
}
_DECODE = {kind.__name__: decode for kind, (_, decode) in _CODECS.items()}

#: Consecutive integers: the first, and how many there are.
_RANGE = "ints"


def encode_keys(keys: Sequence[Key]) -> list[Any]:
    """Return keys as JSON.

    Raises:
        ArgumentError: a column has values of a type that a log does not keep, or of
            several types.
    """
    return [_encode(values) for values in zip(*keys, strict=True)]


def decode_keys(columns: Sequence[Mapping[str, Any]]) -> list[Key]:
    """Return the keys that were encoded."""
    return list(zip(*map(_decode, columns), strict=True))


def _encode(values: Sequence[Any]) -> dict[str, Any]:
    kinds = set(map(type, values))
    if len(kinds) > 1 or not kinds <= _CODECS.keys():
        raise ArgumentError(
            f"a log keeps keys of one of the types {', '.join(sorted(_DECODE))}, one type for each "
            f"column; these are {', '.join(sorted(kind.__name__ for kind in kinds))}"
        )
    (kind,) = kinds
    if kind is int and values == tuple(range(values[0], values[0] + len(values))):
        return {_RANGE: [values[0], len(values)]}
    encode, _ = _CODECS[kind]
    return {kind.__name__: list(map(encode, values))}


def _decode(column: Mapping[str, Any]) -> Sequence[Any]:
    ((kind, values),) = column.items()
    if kind == _RANGE:
        first, count = values
        return range(first, first + count)
    return list(map(_DECODE[kind], values))
