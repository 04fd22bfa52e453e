"""The table that a migration changes, and its queue: from a class or a name.

A migration outlives the models, so it names the table and the mixins. From these a
private class is mapped, which has the same columns and indexes as the model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import declarative_base
from sqlalchemy.types import NullType

from ..errors import ArgumentError
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..model.mixins import JobMixin, QueueColumns
from .runner import Runner

#: A table's name, or a mapped class.
AnyTable: TypeAlias = str | type[Any]

#: A stand-in for the primary key where only the mixins' columns matter.
NO_KEY = ("sa_jobqueue_key",)

#: The options that name columns of the table.
_OF_COLUMNS = ("equality", "order_by", "per_key", "enqueued_at")


def mapping_for(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[type[QueueColumns]],
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    key: Sequence[str] = NO_KEY,
) -> QueueMapping:
    """Return the mapping of a class, or of a private class for a table's name.

    Raises:
        ArgumentError: `table` is a class, and `queue_args` or `schema` is given too.
    """
    if not isinstance(table, str):
        if queue_args is not None or schema is not None:
            raise ArgumentError(
                f"{table!r} has its own __queue_args__ and its own schema; to give others, pass "
                "the table's name instead of the class"
            )
        mapping = any_mapping_of(table)
        return mapping if mapping.is_ordered else mapping_of(table)  # raises: it is no queue
    args = dict(queue_args or {})
    mixins = tuple(mixins) or (JobMixin,)
    taken = {name for mixin in mixins for name in mixin.__queue_attributes__.values()}
    others = {*_words(args.get(option) for option in _OF_COLUMNS)} - taken
    body: dict[str, Any] = {column: Column(NullType()) for column in others}
    body |= {column: Column(NullType(), primary_key=True) for column in key}
    body |= {
        "__tablename__": table,
        "__table_args__": {"schema": schema},
        "__queue_args__": args,
    }
    metadata = MetaData(naming_convention=_naming_convention(runner, table, schema))
    base = declarative_base(metadata=metadata)
    return any_mapping_of(type("Adopted", (*mixins, base), body))


def _words(given: Any) -> Iterator[str]:
    """Yield the columns that an option names: ``"a desc"``, ``["a", ("b", "c")]``."""
    if isinstance(given, str):
        yield given.partition(" ")[0]
    else:
        for each in given or ():
            yield from _words(each)


def _naming_convention(runner: Runner, name: str, schema: str | None) -> Any:
    """Return the naming convention of the MetaData that Alembic compares the table with."""
    all_metadata = compared(runner.context)
    key = name if schema is None else f"{schema}.{name}"
    found = [metadata for metadata in all_metadata if key in metadata.tables] or all_metadata
    return found[0].naming_convention if found else None


def compared(context: Any) -> list[MetaData]:
    """List each MetaData that an environment of Alembic compares the database with."""
    given = context.opts.get("target_metadata") or ()
    return [given] if isinstance(given, MetaData) else list(given)


def bare_table(table: AnyTable, schema: str | None = None) -> Table:
    """Return a Table without columns, with the name and the schema of a class."""
    if isinstance(table, str):
        return Table(table, MetaData(), schema=schema)
    real = any_mapping_of(table).table
    return Table(real.name, MetaData(), schema=schema or real.schema)


def reflect_table(runner: Runner, bare: Table) -> Table:
    """Read a table's columns from the database.

    Raises:
        ArgumentError: there is no such table.
    """
    try:
        return Table(
            bare.name,
            MetaData(),
            schema=bare.schema,
            autoload_with=runner.connection,
            resolve_fks=False,
        )
    except NoSuchTableError as error:
        raise ArgumentError(
            f"there is no table {bare.fullname}: correct the name, or give the table's schema="
        ) from error
