"""SQLite: a list of integers as one parameter, which is a text in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, String, bindparam, func, select
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class IntegerList(TypeDecorator[Sequence[int]]):
    """A list of integers, None as null, written as JSON."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Sequence[int | None] | None, dialect: Dialect) -> str:
        """Write the text, and refuse anything but integers."""
        words = ("null" if number is None else str(int(number)) for number in value or ())
        return f"[{','.join(words)}]"


def integers_in(parameter: str) -> Select[Any]:
    """Select the integers of a parameter.

    The text of the statement is the same for all lists, so the driver keeps it prepared. With the
    integers in the text, SQLite parsed every finish anew.
    """
    given: ColumnElement[Any] = bindparam(parameter, type_=IntegerList())
    listed = func.json_each(given).table_valued("value", name="sa_jobqueue_listed")
    return select(listed.c.value)
