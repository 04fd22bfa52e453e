"""The columns that a model has and its table lacks: a migration has not run yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Result, Select, Table, literal_column, select
from sqlalchemy.exc import DBAPIError


def missing_columns(
    execute: Callable[[Select[Any]], Result[Any]], table: Table, roll_back: Callable[[], object]
) -> list[str]:
    """Name the columns that the model has and the table lacks.

    Reflection would know them, too, but it reads the indexes as well, and warns of some.

    Args:
        execute: runs a statement, also after `roll_back`.
        roll_back: called after a statement that has failed.

    Raises:
        DBAPIError: the table cannot be read for another reason.
    """
    try:
        execute(select(table).limit(0))
    except DBAPIError:
        roll_back()
        whole: Select[Any] = select(literal_column("*")).select_from(table).limit(0)
        there = set(map(str.casefold, execute(whole).keys()))
        missing = [column.name for column in table.c if column.name.casefold() not in there]
        if not missing:  # something else is wrong, such as privileges
            raise
        return missing
    return []
