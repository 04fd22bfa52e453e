"""The destination of rows: a mapped class, its tables, its key and its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, cast
from uuid import uuid4

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Select,
    String,
    Table,
    TypeDecorator,
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


class Destination:
    """A mapped class whose rows a load inserts, finds by key and deletes.

    Raises:
        ArgumentError: `entity` is not a mapped class.
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
        """The tables that hold a row; a table that others refer to comes before them."""
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
        """The column key of each attribute, where a plain INSERT into one table is enough.

        None: the mapper inserts, since it does more than that.
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
        """Whether a row may refer to another row of these tables, which comes before it."""
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
        """The function that makes a missing key; None: only the server could make it."""
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
        """Refuse a row with names that are not columns.

        Raises:
            ArgumentError: the message has those names.
        """
        unknown = sorted(map(str, row.keys() - self.mapper.columns.keys()))
        if unknown:
            named = (name if name.isidentifier() else repr(name) for name in unknown)
            raise ArgumentError(f"{self} has no column {', '.join(named)}")

    def keys_of_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[Key]:
        """Return the keys of rows; None stands for a missing value."""
        columns = ([row.get(name) for row in rows] for name in self.key_names)
        return list(zip(*columns, strict=True))

    def refuse_server_key(self, row: Mapping[str, Any]) -> NoReturn:
        """Refuse a row whose key the server would make.

        Raises:
            ArgumentError: always.
        """
        missing = [name for name in self.key_names if row.get(name) is None]
        raise ArgumentError(
            f"a row of {self} has no {', '.join(missing)}, and the server would choose it: after a "
            "crash the load could not find its own rows. Give the keys with the rows, such as "
            f"numbers above the greatest in the table. Or give {self} a key that exists before the "
            "insert: a UUID, or a column with default=a function."
        )

    # -- by key ---------------------------------------------------------

    def existing(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return those of the keys that are in the table, as the server has them."""
        statement: Select[Any] = select(*self.keys)
        return [
            tuple(row)
            for values, criterion in self._by_key(connection, self.keys, keys)
            for row in connection.execute(statement.where(criterion), values)
        ]

    def taken(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return those of the keys that are in the table, as they were given.

        A server may find "a" by "A". Which of the given keys it has found so is
        searched for by halving them.
        """
        found = set(self.existing(connection, keys))
        same = [key for key in keys if key in found]
        if len(same) == len(found):
            return same
        return same + self._search(connection, [key for key in keys if key not in found])

    def _search(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        if not keys or not self.existing(connection, keys):
            return []
        if len(keys) == 1:
            return list(keys)
        middle = len(keys) // 2
        halves = (keys[:middle], keys[middle:])
        return [key for half in halves for key in self._search(connection, half)]

    def delete(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Delete the rows of these keys; a row that refers to others goes before them."""
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
        criterion = _key_criterion(connection, columns)
        return [({"sa_jobqueue_keys": key_values(part)}, criterion) for part in key_batches(keys)]


def _key_criterion(connection: Connection, columns: Sequence[Column[Any]]) -> ColumnElement[bool]:
    if len(columns) == 1:
        return database_of(connection).key_is_in(columns[0], "sa_jobqueue_keys")
    return tuple_(*columns).in_(bindparam("sa_jobqueue_keys", expanding=True))


def _python_type(column: Any) -> type:
    """Return the type of a column's values; object: a field of a file is handed on as it is."""
    kind = column.type
    try:
        named: type = kind.python_type
    except NotImplementedError:  # SQLAlchemy 2.0
        named = object
    if named is not object:
        return named
    while isinstance(kind, TypeDecorator):
        kind = kind.impl
    if isinstance(kind, JSON):  # it has named no type since SQLAlchemy 2.1
        return dict
    return str if isinstance(kind, String) else object
