"""Which table is changed, and how its queue looks: from a class, a Table, or a name alone.

A migration outlives the models, so it names the table and the mixins. From them a
class is mapped that nobody else sees, and it answers as the real one would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Column, MetaData, Table
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import declarative_base
from sqlalchemy.types import NullType

from ..errors import ArgumentError
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..model.mixins import (
    JobMixin,
    PriorityMixin,
    QueueColumns,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from .running import Runner

#: A table's name, a Table, or a mapped class.
AnyTable: TypeAlias = str | Table | type[Any]

#: What stands in for the primary key where only the mixins' columns matter.
_NO_KEY = ("sa_jobqueue_key",)


def queue_of(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[type[QueueColumns]],
    *,
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    key: Sequence[str] = _NO_KEY,
) -> QueueMapping:
    """Return the mapping of a class, or of one made up for a table.

    Raises:
        ArgumentError: a class, and arguments that it answers itself.
    """
    if isinstance(table, str | Table):
        naming = naming_of(runner, *name_of(table, schema))
        if isinstance(table, Table):
            naming, schema = table.metadata.naming_convention, schema or table.schema
            mixins = mixins or _mixins_of(table)
            table = table.name
        made = _made_up(
            table,
            mixins or (JobMixin,),
            key=key,
            args=queue_args or {},
            schema=schema,
            naming=naming,
        )
        return any_mapping_of(made)
    if queue_args is not None or schema is not None:
        raise ArgumentError(
            f"{table!r} has its own __queue_args__ and its own schema; to give others, name the "
            "table instead of the class"
        )
    mapping = any_mapping_of(table)
    return mapping if mapping.is_ordered else mapping_of(table)  # which refuses it


def naming_of(runner: Runner, name: str, schema: str | None) -> Any:
    """Return the naming convention of the metadata that Alembic compares the table with."""
    given = runner.context.opts.get("target_metadata") or ()
    each = [given] if isinstance(given, MetaData) else list(given)
    key = name if schema is None else f"{schema}.{name}"
    holding = [metadata for metadata in each if key in metadata.tables] or each
    return holding[0].naming_convention if holding else None


def name_of(table: AnyTable, schema: str | None = None) -> tuple[str, str | None]:
    """Return name and schema of a table."""
    real = as_table(table, schema)
    return real.name, real.schema


def as_table(table: AnyTable, schema: str | None = None) -> Table:
    """Return a table as its model has it, or one of its name."""
    if isinstance(table, str):
        return Table(table, MetaData(), schema=schema)
    real = table if isinstance(table, Table) else any_mapping_of(table).table
    return real if schema is None else real.to_metadata(MetaData(), schema=schema)


def key_of(
    runner: Runner, table: AnyTable, *, key: Sequence[str] | str | None, schema: str | None
) -> tuple[str, ...]:
    """Return the primary key's columns: as given, as declared, or as the database says.

    Raises:
        ArgumentError: nobody knows them.
    """
    if key is not None:
        return (key,) if isinstance(key, str) else tuple(key)
    if isinstance(table, Table):
        return tuple(column.name for column in table.primary_key)
    name, schema = name_of(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"without a database nobody knows the primary key of {name!r}: name it, as in "
            'key="id" or key=("tenant", "id")'
        )
    found = sa_inspect(runner.connection).get_pk_constraint(name, schema)
    columns = tuple(found["constrained_columns"])
    if not columns:
        raise ArgumentError(f"{name!r} has no primary key; name unique columns as key=")
    return columns


def _mixins_of(table: Table) -> tuple[type[QueueColumns], ...]:
    """Find the mixins of a mapped table by the marks on its columns."""
    names = {column.info.get("sa_jobqueue"): column.name for column in table.columns}
    return tuple(
        mixin.named(**{role: names[role] for role in mixin.__queue_attributes__})
        for mixin in (JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, RoundMixin)
        if names.keys() >= mixin.__queue_attributes__.keys()
    )


def _made_up(
    name: str,
    mixins: Iterable[type[QueueColumns]],
    *,
    key: Sequence[str],
    args: Mapping[str, Any],
    schema: str | None,
    naming: Any,
) -> type[Any]:
    """Map a class with the mixins, and with the columns that its options name."""
    mixins = tuple(mixins)
    taken = {name for mixin in mixins for name in mixin.__queue_attributes__.values()}
    body: dict[str, Any] = {
        "__tablename__": name,
        "__table_args__": {"schema": schema},
        "__queue_args__": dict(args),
    }
    body |= {column: Column(NullType()) for column in _named_in(args) if column not in taken}
    body |= {column: Column(NullType(), primary_key=True) for column in key}
    base = declarative_base(metadata=MetaData(naming_convention=naming))
    return type("Adopted", (*mixins, base), body)


def _named_in(args: Mapping[str, Any]) -> Iterable[str]:
    for option in ("equality", "order_by"):
        given = args.get(option) or ()
        for word in [given] if isinstance(given, str) else given:
            yield word.partition(" ")[0]
    keys = args.get("per_key") or ()
    for key in [keys] if isinstance(keys, str) else keys:
        yield from [key] if isinstance(key, str) else key
    if args.get("enqueued_at"):
        yield args["enqueued_at"]


def fresh(table: Table) -> Table:
    """Make a Table of the same name, to hang other columns on."""
    return Table(table.name, MetaData(), schema=table.schema)


def attach(table: Table, column: Column[Any]) -> Column[Any]:
    """Put a column into a Table, and return it."""
    table.append_column(column)
    return column
