"""What rows are inserted into: a mapped class, its key and its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    Uuid,
    bindparam,
    select,
    tuple_,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import Mapper

from ...dialects import database_of
from ...errors import ArgumentError
from ...model.keys import key_batches, key_values
from .keys import Key


class Target:
    """A mapped class, as a load sees it.

    Raises:
        ArgumentError: it is no mapped class.
    """

    def __init__(self, entity: type[Any]) -> None:
        try:
            mapper = sa_inspect(entity)
        except NoInspectionAvailable:
            mapper = None
        if not isinstance(mapper, Mapper):
            raise ArgumentError(f"{entity!r} is not a mapped class")
        self.entity = entity
        self.mapper: Mapper[Any] = mapper
        self.keys: Sequence[Column[Any]] = cast("tuple[Column[Any], ...]", mapper.primary_key)
        self.key_names = [mapper.get_property_by_column(key).key for key in self.keys]

    def __str__(self) -> str:
        return self.entity.__name__

    @property
    def name(self) -> str:
        """The table's name, with its schema."""
        return str(self.mapper.local_table)

    @cached_property
    def tables(self) -> Sequence[Table]:
        """The tables that a row is in, those that others refer to first."""
        tables = {table for table in self.mapper.tables if isinstance(table, Table)}
        ordered = next(iter(tables)).metadata.sorted_tables
        return sorted(tables, key=ordered.index)

    @cached_property
    def types(self) -> Mapping[str, tuple[type, bool]]:
        """The type of each attribute, and whether it may be None."""
        return {
            name: (_python_type(column), bool(getattr(column, "nullable", True)))
            for name, column in self.mapper.columns.items()
        }

    @cached_property
    def plain(self) -> Mapping[str, str] | None:
        """The column's key of each attribute, where an INSERT into one table is all of it.

        None: the mapper has more to say, and inserts itself.
        """
        mapper, columns = self.mapper, self.mapper.columns
        if (
            len(self.tables) > 1
            or mapper.polymorphic_on is not None
            or mapper.version_id_col is not None
            or not all(isinstance(column, Column) for column in columns.values())
        ):
            return None
        return {name: str(column.key) for name, column in columns.items()}

    @cached_property
    def refers_to_itself(self) -> bool:
        """Whether a row may refer to another one, which has to be there before it."""
        return any(
            key.column.table in self.tables and not key.parent.primary_key
            for table in self.tables
            for key in table.foreign_keys
        )

    @cached_property
    def server_makes_keys(self) -> bool:
        """Whether the server would make a key that is missing."""
        return self.tables[0].autoincrement_column is not None

    @cached_property
    def make_key(self) -> Callable[[], Any] | None:
        """What makes keys for rows that have none; None: nobody does but the server."""
        if len(self.keys) > 1:
            return None
        (key,) = self.keys
        default: Any = key.default
        if default is not None and default.is_callable:
            return lambda: default.arg(None)
        if isinstance(key.type, Uuid) and default is None:
            return uuid4 if key.type.as_uuid else lambda: uuid4().hex
        return None

    def check_names(self, row: Mapping[str, Any]) -> None:
        """Refuse names that are no columns.

        Raises:
            ArgumentError: names them.
        """
        unknown = sorted(map(str, row.keys() - self.mapper.columns.keys()))
        if unknown:
            named = (name if name.isidentifier() else repr(name) for name in unknown)
            raise ArgumentError(f"{self} has no column {', '.join(named)}")

    def keys_of_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[Key]:
        """Return the keys that rows come with; None stands for what is missing."""
        columns = ([row.get(name) for row in rows] for name in self.key_names)
        return list(zip(*columns, strict=True))

    def refuse_server_key(self, row: Mapping[str, Any]) -> None:
        """Say what to do where the server would make the key."""
        missing = [name for name in self.key_names if row.get(name) is None]
        raise ArgumentError(
            f"a row of {self} has no {', '.join(missing)}, and the server would make it: after a "
            "crash nobody could tell which rows are this load's. Give the keys with the rows "
            f"(for instance numbers behind the greatest that there is), or give {self} a key "
            "that is made before the insert: a UUID, or one with default=a function."
        )

    # -- by key ---------------------------------------------------------

    def existing(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return which of the keys are in the table."""
        statement: Select[Any] = select(*self.keys)
        return [
            tuple(row)
            for values, criterion in self._by_key(connection, self.keys, keys)
            for row in connection.execute(statement.where(criterion), values)
        ]

    def taken(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return which of the keys are in the table, as they were given.

        A server may find "a" by "A": which it meant is asked by halves.
        """
        there = set(self.existing(connection, keys))
        same = [key for key in keys if key in there]
        if len(same) == len(there):
            return same
        return same + self._halved(connection, [key for key in keys if key not in there])

    def _halved(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        if not keys or not self.existing(connection, keys):
            return []
        if len(keys) == 1:
            return list(keys)
        middle = len(keys) // 2
        halves = (keys[:middle], keys[middle:])
        return [key for half in halves for key in self._halved(connection, half)]

    def delete(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Delete the rows of these keys, those that refer to others first."""
        database = database_of(connection)
        if self.refers_to_itself and not database.checks_references_at_end and len(keys) > 1:
            for key in reversed(keys):
                self.delete(connection, [key])
            return
        for table in reversed(self.tables):
            columns = list(table.primary_key)
            statement: Delete = database.delete_by_key(table, columns)
            for values, criterion in self._by_key(connection, columns, keys):
                connection.execute(statement.where(criterion), values)

    def execute_by_key(self, connection: Connection, statement: Any, keys: Sequence[Key]) -> None:
        """Run an UPDATE for the rows of these keys."""
        for values, criterion in self._by_key(connection, self.keys, keys):
            connection.execute(statement.where(criterion), values)

    def _by_key(
        self, connection: Connection, columns: Sequence[Column[Any]], keys: Sequence[Key]
    ) -> list[tuple[dict[str, Any], ColumnElement[bool]]]:
        criterion = _is_in(connection, columns)
        return [({"load_keys": key_values(some)}, criterion) for some in key_batches(keys)]


def _is_in(connection: Connection, columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
    if len(columns) == 1:
        return database_of(connection).key_is_in(columns[0], "load_keys")
    return tuple_(*columns).in_(bindparam("load_keys", expanding=True))


def _python_type(column: Any) -> type:
    try:
        kind: type = column.type.python_type
    except NotImplementedError:
        return str
    return kind
