"""The destination of rows: a mapped class, its tables and its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Column, Connection, Table, Uuid, select
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import Mapper

from ..dialects import database_of
from ..errors import ArgumentError
from ..model.keys import columns_are_in, key_batches, key_values

Key = tuple[Any, ...]


class Destination:
    """A mapped class whose rows a load inserts, finds by key and deletes.

    Attributes:
        name: the table's name, with its schema.
        plain: the column key of each attribute, where a plain INSERT into one table is
            enough; None: the mapper inserts, since it does more than that.
        defaults: the constants that new rows get without a value of their own.

    Raises:
        ArgumentError: `entity` is not a mapped class.
    """

    def __init__(self, entity: type[Any]) -> None:
        mapper: Any = sa_inspect(entity, raiseerr=False)
        if not isinstance(mapper, Mapper):
            raise ArgumentError(f"{entity!r} is not a mapped class")
        self.entity = entity
        self.name = str(mapper.local_table)
        self.columns = mapper.columns
        self.keys: Sequence[Column[Any]] = mapper.primary_key  # type: ignore[assignment]  # tables'
        self.key_names = [mapper.get_property_by_column(key).key for key in self.keys]
        self._tables = {table for table in mapper.tables if isinstance(table, Table)}
        self.plain: Mapping[str, str] | None = None
        self.defaults: Mapping[str, Any] = {}
        if (
            len(self._tables) == 1
            and mapper.polymorphic_on is None
            and mapper.version_id_col is None
            and all(isinstance(column, Column) for column in self.columns.values())
        ):
            self.plain = {name: str(column.key) for name, column in self.columns.items()}
            self.defaults = {
                name: column.default.arg  # type: ignore[attr-defined]  # a ColumnDefault
                for name, column in self.columns.items()
                if column.default is not None and column.default.is_scalar
            }

    def __str__(self) -> str:
        return self.entity.__name__

    @cached_property
    def tables(self) -> Sequence[Table]:
        """The tables that hold a row; a table that others refer to comes before them."""
        ordered = next(iter(self._tables)).metadata.sorted_tables
        return sorted(self._tables, key=ordered.index)

    # -- keys -----------------------------------------------------------

    def keys_of(self, rows: Sequence[Mapping[str, Any]]) -> list[Key]:
        """Return the keys of rows; None stands for a missing value."""
        columns = ([row.get(name) for row in rows] for name in self.key_names)
        return list(zip(*columns, strict=True))

    def complete(self, key: Key) -> Key:
        """Make a key for a row that has none; return any other key as it is.

        Raises:
            ArgumentError: only the server could make it.
        """
        if None not in key:
            return key
        if self._make_key is not None:
            return (self._make_key(),)
        missing = [name for name, value in zip(self.key_names, key, strict=True) if value is None]
        raise ArgumentError(
            f"a row of {self} has no {', '.join(missing)}, and the server would choose it: after a "
            "crash the load could not find its own rows. Give the keys with the rows, such as "
            f"numbers above the greatest in the table. Or give {self} a key that exists before the "
            "insert: a UUID, or a column with default=a function."
        )

    @cached_property
    def _make_key(self) -> Callable[[], Any] | None:
        if len(self.keys) > 1:
            return None
        (key,) = self.keys
        default: Any = key.default
        if default is not None and default.is_callable:
            return lambda: default.arg(None)
        if isinstance(key.type, Uuid) and default is None:
            return uuid4 if key.type.as_uuid else lambda: uuid4().hex
        return None

    # -- rows by their keys ---------------------------------------------

    def existing(self, connection: Connection, keys: Sequence[Key]) -> list[Key]:
        """Return those of the keys that are in the table, as the server has them."""
        found = self.execute_by_key(connection, select(*self.keys), self.keys, keys)
        return list(map(tuple, found))

    def taken(self, connection: Connection, keys: Sequence[Key]) -> set[Key]:
        """Return those of the keys that are in the table, as they were given.

        A server may find "a" by "A": if it has found other keys than we gave, it is asked
        for each of ours that is missing among them.
        """
        found = set(self.existing(connection, keys))
        same = found.intersection(keys)
        if same == found:
            return same
        return same | {key for key in keys if key not in same and self.existing(connection, [key])}

    def delete(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Delete the rows of these keys; a row that refers to others goes before them."""
        database = database_of(connection)
        refers_to_itself = any(
            key.column.table in self.tables and not key.parent.primary_key
            for table in self.tables
            for key in table.foreign_keys
        )
        one_by_one = refers_to_itself and not database.checks_references_at_end
        for part in [[key] for key in reversed(keys)] if one_by_one else [keys]:
            for table in reversed(self.tables):
                columns = list(table.primary_key)
                statement = database.delete_by_key(table, columns)
                self.execute_by_key(connection, statement, columns, part)

    def execute_by_key(
        self,
        connection: Connection,
        statement: Any,
        columns: Sequence[Column[Any]],
        keys: Sequence[Key],
    ) -> list[Any]:
        """Run a statement for the rows of these keys; return the rows that it returns."""
        criterion = columns_are_in(columns, "sa_jobqueue_keys", database_of(connection))
        found: list[Any] = []
        for part in key_batches(keys):
            given = {"sa_jobqueue_keys": key_values(part)}
            result = connection.execute(statement.where(criterion), given)
            found += result.all() if result.returns_rows else []
        return found


# -- keys in a log ------------------------------------------------------

#: By type: how a value is encoded, and how it is decoded.
_CODECS: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: (int, int),
    str: (str, str),
    UUID: (lambda value: value.hex, UUID),
    Decimal: (str, Decimal),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    bytes: (bytes.hex, bytes.fromhex),
}
_DECODE = {kind.__name__: decode for kind, (_, decode) in _CODECS.items()}


def encode_keys(keys: Sequence[Key]) -> list[Any]:
    """Return keys as JSON: column by column, each with the type of its values.

    ::

        [(1, "a"), (2, "b"), (3, "c")]  ->  [{"int": [1, 2, 3]}, {"str": ["a", "b", "c"]}]

    Raises:
        ArgumentError: a column has values of a type that a log does not keep, or of
            several types.
    """
    encoded = []
    for values in zip(*keys, strict=True):
        kinds = set(map(type, values))
        if len(kinds) > 1 or not kinds <= _CODECS.keys():
            raise ArgumentError(
                f"a log keeps keys of one of the types {', '.join(sorted(_DECODE))}, one type for "
                f"each column; these are {', '.join(sorted(kind.__name__ for kind in kinds))}"
            )
        (kind,) = kinds
        encode, _ = _CODECS[kind]
        encoded.append({kind.__name__: list(map(encode, values))})
    return encoded


def decode_keys(columns: Sequence[Mapping[str, Any]]) -> list[Key]:
    """Return the keys that were encoded."""
    decoded = [map(_DECODE[kind], values) for column in columns for kind, values in column.items()]
    return list(zip(*decoded, strict=True))
