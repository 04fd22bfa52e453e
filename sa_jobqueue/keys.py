"""Lists of primary keys in statements: one column or several, sorted, by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, tuple_

from .dialects import Database
from .mapping import QueueMapping


def key_is_in(mapping: QueueMapping, parameter: str) -> ColumnElement[bool]:
    """Compare the primary key with an expanding parameter of keys.

    Its values: the keys themselves where the key is one column, else tuples.
    """
    keys = mapping.keys
    column: Any = keys[0] if len(keys) == 1 else tuple_(*keys)
    criterion: ColumnElement[bool] = column.in_(bindparam(parameter, expanding=True))
    return criterion


def key_values(identities: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return identities as values for :func:`key_is_in`, sorted where they sort."""
    values = [identity[0] if len(identity) == 1 else identity for identity in identities]
    try:
        return sorted(values)
    except TypeError:  # keys of a type without an order: any order is as good
        return values


def by_key(statement: Any, table: Table, database: Database) -> Any:
    """Bind a SELECT or UPDATE by primary key to that key, where an optimizer may stray."""
    hint = database.key_hint
    return statement if hint is None else statement.with_hint(table, hint)
