"""The tables and the key of a mapped class; its rows, inserted and deleted batch by batch.

Each batch is a transaction, with its mark in the log.

A server finishes the statement of a killed client: a DELETE was seen to remove nothing,
and two seconds later 200 rows were there. So the connection of a load holds the load's lock
for as long as it lives, and the server frees the lock when the connection's last transaction
has ended; the next connection of the load waits for that. SQLite needs no lock: its
transactions end with their process.

On PostgreSQL, rows are copied where the driver can and the rows allow it. They become the text that
COPY reads. INSERT takes the values that have no text here: arrays, documents, types with an SQL
expression, defaults that are functions. COPY made a load 2.9 times as fast as INSERT; the page
docs/internals/bulk.md has the figures.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    LargeBinary,
    Table,
    Uuid,
    bindparam,
    insert,
    select,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from ..databases import database_of, is_transient
from ..databases.connections import as_value
from ..databases.named_locks import Deadline
from ..errors import ArgumentError, BatchInDoubt, LockTimeout, UnsupportedDatabase
from ..model.keys import columns_are_in, key_batches, key_values
from ..sessions.transactions import TRIES, connected_outside_pool, transaction
from .log import INSERTED, REMOVED, Entry

Key = tuple[Any, ...]

#: Seconds between two tries to take the lock; at most so many before the second try of a
#: batch, and twice as many before the third.
_PAUSE = 0.05


class Destination:
    """A mapped class whose rows a load inserts, finds by key and deletes.

    Attributes:
        name: the table's name, with its schema.
        tables: those that hold a row; a table that others refer to comes before them.
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
        tables = {table for table in mapper.tables if isinstance(table, Table)}
        ordered = next(iter(tables)).metadata.sorted_tables
        self.tables = sorted(tables, key=ordered.index)
        self.plain: Mapping[str, str] | None = None
        self.defaults: Mapping[str, Any] = {}
        if (
            len(self.tables) == 1
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


# -- batches ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Some rows of a source.

    Attributes:
        index: the index of the first row.
        keys: the keys of all rows, in their order.
        fingerprint: differs where these are not the same rows again.
        rows: mappings by attribute names; empty where they are not needed.
    """

    index: int
    keys: Sequence[Key]
    fingerprint: int
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"rows {self.index:,} to {self.index + len(self.keys) - 1:,}"


@dataclass(kw_only=True)
class RowWriter:
    """Insert batches and delete them, each in a transaction, on one connection.

    Attributes:
        keep: rows that were in the table before stay; otherwise they are an error.
        defaults: values for new rows that do not give their own.
    """

    destination: Destination
    connection: Connection
    keep: bool
    defaults: Mapping[str, Any]
    copies: dict[tuple[str, ...], Copy | None] = field(default_factory=dict)

    def write(self, batch: RowBatch, entry: Entry) -> None:
        """Write and commit a batch with its mark; try again after a transient error."""
        # Outside our transaction: in memory, the log may share our connection.
        kept = entry.log.kept(entry.number)
        for tries in range(1, TRIES + 1):
            try:
                with transaction(self.connection):
                    entry.before_commit(self.connection, self._written(batch, entry, kept))
            except DBAPIError as error:
                # A connection lost in its COMMIT leaves us in doubt; every other
                # error means that nothing was committed.
                if error.connection_invalidated:
                    raise
                entry.not_committed()
                if tries == TRIES or not is_transient(error):
                    error.add_note(f"Nothing was written of the batch with {batch}.")
                    raise
            else:
                entry.after_commit()
                return
            time.sleep(random.uniform(0, _PAUSE * tries))

    def _written(self, batch: RowBatch, entry: Entry, kept: Any) -> Any:
        """Bring a batch in, or take it back; return the keys to keep, if they are new."""
        is_in = self._was_committed(batch, kept) if entry.in_doubt else entry.mark == REMOVED
        if entry.mark == INSERTED:
            return kept if is_in else encode_keys(self._bring_in(batch))
        if is_in:
            self.destination.delete(self.connection, _without(batch.keys, kept))
        return None

    def _was_committed(self, batch: RowBatch, kept: Any) -> bool:
        """Tell whether a batch in doubt was committed: all of its rows are there, or none.

        Raises:
            BatchInDoubt: some of them are; others have written rows of these keys since.
        """
        ours = _without(batch.keys, kept)
        found = len(self.destination.existing(self.connection, ours))
        if 0 < found < len(ours):
            raise BatchInDoubt(
                f"The load was killed in the commit of a batch ({batch}), and {found:,} of its "
                f"{len(ours):,} rows are in {self.destination.name}: either it was committed, and "
                "others have deleted rows of it since, or it was not, and others have inserted "
                f"rows with its keys (from {ours[0]} on). Nothing was changed. Delete those rows, "
                "or insert the missing ones, and call again. With a DatabaseLog no batch is ever "
                "in doubt."
            )
        return found > 0

    def _bring_in(self, batch: RowBatch) -> list[Key]:
        """Insert the rows that are missing; return the keys that were there before the load."""
        keys, rows, existing = batch.keys, batch.rows, set[Key]()
        if self.keep:
            new = dict(zip(reversed(keys), reversed(rows), strict=True))  # the first of equals
            existing = self.destination.taken(self.connection, list(new))
            keys = [key for key in dict.fromkeys(keys) if key not in existing]
            rows = [new[key] for key in keys]
        if keys:
            self._insert(rows)
            self._check_found(keys, batch)
        return list(existing)

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:  # one INSERT for each set of columns
            values = {**self.defaults, **row}
            groups.setdefault(tuple(values), []).append(values)
        plain, table = self.destination.plain, self.destination.tables[0]
        for names, alike in groups.items():
            if plain is None:
                with Session(self.connection) as session:
                    session.execute(insert(self.destination.entity), alike)
                continue
            if any(plain[name] != name for name in names):
                alike = [{plain[name]: value for name, value in row.items()} for row in alike]
            if names not in self.copies:
                columns = [plain[name] for name in names]
                self.copies[names] = Copy.prepare(self.connection, table, columns)
            copy = self.copies[names]
            if copy is None or not copy.insert(self.connection, alike):
                self.connection.execute(insert(table), alike)

    def _check_found(self, keys: Sequence[Key], batch: RowBatch) -> None:
        """Refuse keys by which the server does not find the rows again.

        Raises:
            ArgumentError: the server stores keys in another form than they were given.
        """
        if all(isinstance(value, int | UUID) for value in keys[0]) and (0,) not in keys:
            return
        lost = len(keys) - len(self.destination.existing(self.connection, keys))
        if lost:
            raise ArgumentError(
                f"{lost:,} of {len(keys):,} rows ({batch}) are not found by their keys after the "
                f"insert: {self.destination.name} stores them in another form, for instance a "
                "time without its fractions, a rounded number, or a new number in place of 0. A "
                "rollback would not find them either, so nothing of the batch was inserted. Give "
                "the keys as their columns store them."
            )


def _without(keys: Sequence[Key], kept: Any) -> list[Key]:
    """Return each key once, without those that were in the table before the load."""
    foreign = set(decode_keys(kept)) if kept else set()
    return [key for key in dict.fromkeys(keys) if key not in foreign]


# -- connections --------------------------------------------------------


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Connect outside the pool; a database in memory has only the pool's connection."""
    with engine.connect() as connection:
        if not database_of(connection).seen_by_others(connection):
            yield connection
            return
    with connected_outside_pool(engine) as connection:
        yield connection


def hold_lock(connection: Connection, load: str, wait: timedelta) -> None:
    """Take the lock of a load on this connection, which keeps it until it ends.

    Raises:
        LockTimeout: another connection held the lock all the time.
        UnsupportedDatabase: the connection goes through a pooler.
    """
    database = database_of(connection)
    if not database.has_network:
        return  # the file's lock ends with its process
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            f"This connection to {database} goes through a connection pooler, so a bulk load could "
            "not tell when the transactions of a killed process have ended. Give the source an "
            "engine whose URL names the server itself."
        )
    database.notice_silence(connection)
    name, deadline = f"bulk load {load}", Deadline(wait)
    key = database.lock_keys(connection, [name])[name]
    while not database.take_lock(connection, key=key, seconds=0):
        if deadline.passed:
            raise LockTimeout(
                f"The server still works for this load, as {database.key_holder(connection, key)}: "
                "wait until it has finished, or end that connection."
            )
        connection.rollback()
        time.sleep(_PAUSE)
    connection.commit()


@dataclass(frozen=True)
class Copy:
    """COPY rows that have the same columns into a table; :meth:`prepare` makes it."""

    statement: str
    processors: Mapping[str, Any]

    @classmethod
    def prepare(cls, connection: Connection, table: Table, names: Sequence[str]) -> Copy | None:
        """Prepare COPY for rows with these column keys; None: COPY cannot take them."""
        cursor = connection.connection.cursor()
        has_copy = hasattr(cursor, "copy_expert") or hasattr(cursor, "copy")
        cursor.close()
        kinds = {name: table.c[name].type.dialect_impl(connection.dialect) for name in names}
        if (
            not has_copy
            or connection.get_execution_options().get("schema_translate_map")
            or any(column.default and column.key not in names for column in table.c)
            or any(
                kind.bind_expression(bindparam("value", type_=kind)) is not None
                for kind in kinds.values()
            )
        ):
            return None
        quote = connection.dialect.identifier_preparer
        quoted = ", ".join(quote.format_column(table.c[name]) for name in names)
        statement = f"COPY {quote.format_table(table)} ({quoted}) FROM STDIN"
        processors = {
            # For bytes, drivers have a processor that wraps them for statements with parameters.
            name: None if isinstance(kind, LargeBinary) else kind.bind_processor(connection.dialect)
            for name, kind in kinds.items()
        }
        return cls(as_value(connection.dialect, statement), processors)

    def insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Copy rows in; return False and send nothing where COPY cannot take one of them.

        Raises:
            DBAPIError: as for any statement.
        """
        columns = []
        for name, process in self.processors.items():
            values = [row[name] for row in rows]
            texts = _texts(values if process is None else list(map(process, values)))
            if texts is None:
                return False
            columns.append(texts)
        text = "".join(["\t".join(fields) + "\n" for fields in zip(*columns, strict=True)])
        driver: Any = connection.connection.dbapi_connection
        dialect = connection.dialect
        base: Any = dialect.loaded_dbapi.Error
        try:
            with driver.cursor() as cursor:
                if hasattr(cursor, "copy_expert"):  # psycopg2
                    cursor.copy_expert(self.statement, io.StringIO(text))
                else:  # psycopg 3
                    with cursor.copy(self.statement) as copy:
                        copy.write(text)
        except base as error:
            gone = dialect.is_disconnect(error, driver, None)
            if gone:
                # Otherwise its rollback would fail, and hide this error.
                connection.invalidate(error)
            raise DBAPIError.instance(
                self.statement, None, error, base, connection_invalidated=gone, dialect=dialect
            ) from error
        return True


def _texts(values: Sequence[Any]) -> list[str] | None:
    kinds = set(map(type, values))
    if not kinds <= _TEXT.keys():
        return None
    if len(kinds) == 1:
        return list(map(_TEXT[kinds.pop()], values))
    return [_TEXT[type(value)](value) for value in values]


def _escaped(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if text.isprintable():
        return text
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_TEXT: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda value: "\\N",
    bool: lambda value: "t" if value else "f",
    int: str,
    float: repr,
    Decimal: str,
    str: _escaped,
    UUID: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time_of_day: time_of_day.isoformat,
    bytes: lambda value: f"\\\\x{value.hex()}",
}
