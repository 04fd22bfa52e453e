"""Lists of primary keys in statements: one column or several, sorted, by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, select, tuple_
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import load_only

from .dialects import Database
from .mapping import QueueMapping
from .sessions import Writer


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
    if database.key_hint is None or not table.primary_key:
        return statement
    return statement.with_hint(table, database.key_hint)


def keys_of(
    mapping: QueueMapping, jobs: Sequence[Any], *, rows: bool = False
) -> list[tuple[Any, ...]]:
    """Return the primary keys of entities, or of plain rows."""
    if rows:
        places = mapping.key_places
        return [tuple(row[place] for place in places) for row in jobs]
    return [tuple(sa_inspect(job).identity) for job in jobs]


def refresh(
    writer: Writer, mapping: QueueMapping, entities: Sequence[Any], attributes: Sequence[str]
) -> None:
    """Load some attributes of entities again, by one SELECT for all of them."""
    if not attributes or not entities:
        return
    for entity in entities:
        writer.session.expire(entity, attributes)
    wanted = load_only(*(getattr(mapping.entity, key) for key in attributes))
    again = select(mapping.entity).where(key_is_in(mapping, "claim_keys")).options(wanted)
    writer.orm(again, {"claim_keys": key_values(keys_of(mapping, entities))}).unique().all()
