"""Whether a column keeps a time zone, and the microseconds of owner_date.

The microseconds are a part of the fence. Where a column does not keep them, the row holds another
time than the token of its claim, and every finish is lost.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

DIGITS = 6

#: The number in ``DATETIME(6)`` or ``TIMESTAMP(3) WITH TIME ZONE``.
_NUMBER = re.compile(r"\((\d+)\)")

_SOME_TIME = datetime(2001, 2, 3, 4, 5, 6, 123457, tzinfo=UTC)


def has_no_zone(type_: TypeEngine[Any], dialect: Dialect) -> bool:
    """Tell whether a type is a time without a time zone, in SQL."""
    return "WITHOUT TIME ZONE" in type_.compile(dialect=dialect)


def named_digits(type_: TypeEngine[Any], dialect: Dialect) -> int | None:
    """Return how many digits of a second a type names in SQL; None: it names no number."""
    number = _NUMBER.search(type_.compile(dialect=dialect))
    return int(number[1]) if number else None


def loses_microseconds(type_: TypeEngine[Any], dialect: Dialect, default: int) -> str | None:
    """Tell how a type loses microseconds on a database; None: it keeps them.

    Args:
        default: the digits of a type that names no number.
    """
    named = named_digits(type_, dialect)
    digits = default if named is None else named
    if digits < DIGITS:
        return f"{type_.compile(dialect=dialect)} keeps {digits} digits of a second"
    own = type_.dialect_impl(dialect)
    write, read = own.bind_processor(dialect), own.result_processor(dialect, None)
    stored = _SOME_TIME if write is None else write(_SOME_TIME)
    back = stored if read is None else read(stored)
    if getattr(back, "microsecond", None) != _SOME_TIME.microsecond:
        return f"{type_!r} gives back {back!r} for {_SOME_TIME!r}"
    return None
