"""The table that a migration changes, and its queue: from a class, a Table or a name.

A migration outlives the models, so it names the table and the mixins. From these a
private class is mapped, which has the same columns and indexes as the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import Column, MetaData, Table
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import declarative_base
from sqlalchemy.types import NullType

from ..errors import ArgumentError
from ..model.columns import MARK, WORDS
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..model.mixins import (
    JobMixin,
    PriorityMixin,
    QueueColumns,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from .runner import Runner

#: A table's name, a Table, or a mapped class.
AnyTable: TypeAlias = str | Table | type[Any]

#: A stand-in for the primary key where only the mixins' columns matter.
_NO_KEY = ("sa_jobqueue_key",)


def mapping_for(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[type[QueueColumns]],
    *,
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    key: Sequence[str] = _NO_KEY,
) -> QueueMapping:
    """Return the mapping of a class, or of a private class for a table.

    Raises:
        ArgumentError: `table` is a class, and `queue_args` or `schema` is given too.
    """
    if isinstance(table, str | Table):
        naming = naming_convention(runner, *name_and_schema(table, schema))
        if isinstance(table, Table):
            naming, schema = table.metadata.naming_convention, schema or table.schema
            mixins = mixins or _mixins_of(table)
            queue_args = {"names": words_of(table)} if queue_args is None else queue_args
            table = table.name
        private = _map_class(
            table,
            mixins or (JobMixin,),
            key=key,
            args=queue_args or {},
            schema=schema,
            naming=naming,
        )
        return any_mapping_of(private)
    if queue_args is not None or schema is not None:
        raise ArgumentError(
            f"{table!r} has its own __queue_args__ and its own schema; to give others, pass the "
            "table's name instead of the class"
        )
    mapping = any_mapping_of(table)
    return mapping if mapping.is_ordered else mapping_of(table)  # raises: the class is no queue


def naming_convention(runner: Runner, name: str, schema: str | None) -> Any:
    """Return the naming convention of the MetaData that Alembic compares the table with."""
    given = runner.context.opts.get("target_metadata") or ()
    all_metadata = [given] if isinstance(given, MetaData) else list(given)
    key = name if schema is None else f"{schema}.{name}"
    found = [metadata for metadata in all_metadata if key in metadata.tables] or all_metadata
    return found[0].naming_convention if found else None


def name_and_schema(table: AnyTable, schema: str | None = None) -> tuple[str, str | None]:
    """Return the name and the schema of a table."""
    real = as_table(table, schema)
    return real.name, real.schema


def as_table(table: AnyTable, schema: str | None = None) -> Table:
    """Return the Table of a model, or a Table without columns for a name."""
    if isinstance(table, str):
        return Table(table, MetaData(), schema=schema)
    real = table if isinstance(table, Table) else any_mapping_of(table).table
    return real if schema is None else real.to_metadata(MetaData(), schema=schema)


def primary_key_of(
    runner: Runner, table: AnyTable, *, key: Sequence[str] | str | None, schema: str | None
) -> tuple[str, ...]:
    """Return the primary key's columns: as given, as declared, or as the database has them.

    Raises:
        ArgumentError: they are not given, and cannot be found.
    """
    if key is not None:
        return (key,) if isinstance(key, str) else tuple(key)
    if isinstance(table, Table):
        return tuple(column.name for column in table.primary_key)
    name, schema = name_and_schema(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"without a database the primary key of {name!r} is not known: name it, as in "
            'key="id" or key=("tenant", "id")'
        )
    found = sa_inspect(runner.connection).get_pk_constraint(name, schema)
    columns = tuple(found["constrained_columns"])
    if not columns:
        raise ArgumentError(f"{name!r} has no primary key: name unique columns as key=")
    return columns


def _mixins_of(table: Table) -> tuple[type[QueueColumns], ...]:
    """Find the mixins of a mapped table by the info of its columns."""
    names = names_by_role(table)
    return tuple(
        mixin.named(**{role: names[role] for role in mixin.__queue_attributes__})
        for mixin in (JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, RoundMixin)
        if names.keys() >= mixin.__queue_attributes__.keys()
    )


def names_by_role(table: Table) -> dict[str, str]:
    """Return the names of the queue's columns in a mapped table, by their roles."""
    return {column.info[MARK]: column.name for column in table.columns if MARK in column.info}


def words_of(table: Table) -> dict[str, str]:
    """Return a mapped table's own words for the statuses."""
    return next((column.info[WORDS] for column in table.columns if WORDS in column.info), {})


def _map_class(
    name: str,
    mixins: Iterable[type[QueueColumns]],
    *,
    key: Sequence[str],
    args: Mapping[str, Any],
    schema: str | None,
    naming: Any,
) -> type[Any]:
    """Map a class with the mixins, and with the columns that its options refer to."""
    mixins = tuple(mixins)
    taken = {name for mixin in mixins for name in mixin.__queue_attributes__.values()}
    body: dict[str, Any] = {
        "__tablename__": name,
        "__table_args__": {"schema": schema},
        "__queue_args__": dict(args),
    }
    body |= {column: Column(NullType()) for column in _option_columns(args) if column not in taken}
    body |= {column: Column(NullType(), primary_key=True) for column in key}
    base = declarative_base(metadata=MetaData(naming_convention=naming))
    return type("Adopted", (*mixins, base), body)


def _option_columns(args: Mapping[str, Any]) -> Iterable[str]:
    for option in ("equality", "order_by"):
        given = args.get(option) or ()
        for word in [given] if isinstance(given, str) else given:
            yield word.partition(" ")[0]
    keys = args.get("per_key") or ()
    for key in [keys] if isinstance(keys, str) else keys:
        yield from [key] if isinstance(key, str) else key
    if args.get("enqueued_at"):
        yield args["enqueued_at"]


def bare_table(table: Table) -> Table:
    """Return a Table of the same name without columns."""
    return Table(table.name, MetaData(), schema=table.schema)


def add_column(table: Table, column: Column[Any]) -> Column[Any]:
    """Add a column to a Table, and return it."""
    table.append_column(column)
    return column


def reflect_table(runner: Runner, name: str, schema: str | None) -> Table:
    """Read a table's columns from the database.

    Raises:
        ArgumentError: there is no such table.
    """
    with _missing_table_named(name, schema):
        return Table(
            name, MetaData(), schema=schema, autoload_with=runner.connection, resolve_fks=False
        )


def existing_columns(runner: Runner, table: Table) -> dict[str, Any]:
    """Return the columns that a table has in the database, by name.

    Raises:
        ArgumentError: there is no such table.
    """
    with _missing_table_named(table.name, table.schema):
        found = sa_inspect(runner.connection).get_columns(table.name, table.schema)
    return {column["name"]: column for column in found}


@contextmanager
def _missing_table_named(name: str, schema: str | None) -> Iterator[None]:
    try:
        yield
    except NoSuchTableError as error:
        full_name = name if schema is None else f"{schema}.{name}"
        raise ArgumentError(
            f"there is no table {full_name}: correct the name, or give the table's schema="
        ) from error
