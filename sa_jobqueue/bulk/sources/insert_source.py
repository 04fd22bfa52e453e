"""Rows of any mapped class, as a source.

::

    InsertSource(engine, Email, rows, total=1_000_000)      # mappings, lazily
    InsertSource(engine, Email, Path("emails.csv"))         # or emails.jsonl

A row needs a key before it is inserted: the row gives it, or the class makes it (a
UUID, or a default that is a function). Keys that the server makes are refused.

Limits: a function that returns rows has to yield the same rows in the same order when
the load goes on. A rollback does not undo what the server does by itself: sequences,
triggers, rows of other tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import chain, islice
from typing import Any, Literal, get_args
from zlib import crc32

from sqlalchemy import Connection, Engine

from ...dialects import database_of_engine
from ...errors import ArgumentError, SourceChanged
from ..log import INSERT_IN_DOUBT, INSERTED, Entry
from ..source import DivisibleSource, Metadata
from .connections import connected, hold_slot, wait_for_slots
from .destination import Destination
from .keys import Key, decode_keys, encode_keys
from .row_files import rows_from
from .row_writer import RowBatch, RowWriter
from .rows import Row

#: Rows of a batch.
BATCH_SIZE = 5_000

#: How long a connection waits for an earlier connection of the load with the same slot.
_WAIT = timedelta(seconds=60)

OnExisting = Literal["error", "keep", "update"]


class InsertSource(DivisibleSource[RowBatch]):
    """Insert rows of a mapped class, batch by batch.

    Args:
        engine: an engine of the database to load; each worker has a connection of its
            own, outside the engine's pool.
        entity: a mapped class.
        rows: an iterable of mappings from attribute names to values, a function that
            returns such an iterable, or the path of a .csv, .jsonl or .ndjson file.
        total: how many rows there are; by default their ``len()``. Any other number of
            rows is an error.
        batch_size: rows of a transaction.
        on_existing: what happens to a row whose key was in the table before: "error"
            ends the load, "keep" leaves the old row, "update" gives it the new values.
            A rollback never deletes such a row.
        copy: whether COPY is used where the driver has it and the rows allow it.

    Raises:
        ArgumentError: an argument cannot work.
    """

    def __init__(
        self,
        engine: Engine,
        entity: type[Any],
        rows: Any,
        *,
        total: int | None = None,
        batch_size: int = BATCH_SIZE,
        on_existing: OnExisting = "error",
        copy: bool = True,
    ) -> None:
        check_option("on_existing", on_existing, get_args(OnExisting))
        self.engine = _checked_engine(engine)
        self.destination = Destination(entity)
        self.rows = rows_from(rows, self.destination.types)
        self.total = self._known_total(total)
        self.batch_size = batch_size
        self.on_existing: OnExisting = on_existing
        self.copy = copy
        self._names: Any = None
        self._logged_details: Any = None
        self._logged_total: int | None = None
        Metadata(total=self.total, batch_size=batch_size)  # checks both

    def _known_total(self, total: int | None) -> int | None:
        counted = self.rows.total
        if None not in (counted, total) and counted != total:
            raise ArgumentError(f"total is {total:,}, but there are {counted:,} rows: leave it out")
        return counted if total is None else total

    def metadata(self) -> Metadata:
        """Return how many rows there are, the table, and what identifies their file."""
        details = {"table": self.destination.name, "rows": self.rows.details}
        return Metadata(total=self.total, batch_size=self.batch_size, details=details)

    def resume(self, metadata: Metadata) -> None:
        """Accept the batch size that the load began with; refuse another table.

        A changed file is refused only when it is read, since a rollback reads no file.
        """
        self._check_same("table", metadata.details.get("table"), self.destination.name)
        self.batch_size = metadata.batch_size
        self._logged_details = metadata.details.get("rows")
        self._logged_total = metadata.total

    def _check_same(self, name: str, logged: Any, given: Any) -> None:
        if logged != given:
            raise SourceChanged(
                f"The load began with the {name} {logged!r}, and this is {given!r}: go on with the "
                "same, or call rollback()."
            )

    def _check_same_rows(self) -> None:
        if None not in (self._logged_total, self.rows.total):
            self._check_same("total", self._logged_total, self.rows.total)
        if self._logged_details is not None:
            self._check_same("rows", self._logged_details, self.rows.details)
            self._logged_details = None  # once is enough: it reads the whole file

    # -- batches --------------------------------------------------------

    def divide(self) -> Iterator[RowBatch]:
        """Yield the rows in batches, with keys."""
        return self._read_batches(0, 0)

    def divide_after(self, count: int, last: RowBatch | None) -> Iterator[RowBatch]:
        """Yield the batches after `last`; in a file, read from its byte offset on."""
        if last is None:
            return self.divide()
        self._check_same_rows()
        if not self.rows.seeks:
            return self._read_batches(last.index + len(last.keys), 0)
        return self._read_batches(last.index, last.offset, skip=len(last.keys))

    def encode(self, batch: RowBatch) -> Any:
        """Return the keys, and where the rows are found again."""
        return {
            "index": batch.index,
            "offset": batch.offset,
            "fingerprint": batch.fingerprint,
            "keys": encode_keys(batch.keys),
        }

    def decode(self, logged: Any) -> RowBatch:
        """Return the batch without its rows."""
        return RowBatch(**{**logged, "keys": decode_keys(logged["keys"])})

    def refill(self, batches: Iterator[tuple[int, RowBatch]]) -> Iterator[tuple[int, RowBatch]]:
        """Read the rows of batches again; their keys stay those of the log.

        Raises:
            SourceChanged: the rows are not the same.
        """
        reading: Iterator[tuple[int, Row]] = iter(())
        index = -1  # of the row that `reading` yields next
        for number, batch in batches:
            self._check_same_rows()
            if index < 0 or (index < batch.index and self.rows.seeks):
                reading, index = self.rows.read(batch.index, batch.offset), batch.index
            skip = batch.index - index
            found = list(islice(reading, skip, skip + len(batch.keys)))
            index = batch.index + len(batch.keys)
            yield number, self._with_rows(batch, [row for _, row in found])

    def _read_batches(self, index: int, offset: int, *, skip: int = 0) -> Iterator[RowBatch]:
        reading = self.rows.read(index, offset)
        for _ in islice(reading, skip):
            pass
        index += skip
        while found := list(islice(reading, self.batch_size)):
            yield self._batch(index, found[0][0], [row for _, row in found])
            index += len(found)
        if self.total is not None and index != self.total:
            raise ArgumentError(
                f"total is {self.total:,}, but there are {index:,} rows: leave it out, or give the "
                "right number; then run() goes on"
            )

    def _batch(self, index: int, offset: int, rows: list[Row]) -> RowBatch:
        self._check_names(rows)
        keys = self.destination.keys_of_rows(rows)
        if (0,) in keys and self._zero_is_missing():
            raise ArgumentError(
                f"the key of a row of {self.destination} is 0, and this server replaces 0 by a new "
                "number: give the row another key"
            )
        keyed = rows
        if None in chain.from_iterable(keys):
            keys = [
                key if None not in key else self._make_key(row)
                for key, row in zip(keys, rows, strict=True)
            ]
            keyed = self._with_keys(rows, keys)
        return RowBatch(
            index=index,
            offset=offset,
            keys=keys,
            fingerprint=fingerprint(rows),
            rows=self.checked(keyed),
            defaults=self.defaults(),
        )

    def _with_rows(self, batch: RowBatch, rows: list[Row]) -> RowBatch:
        self._check_names(rows)
        given = self.destination.keys_of_rows(rows)
        same = len(given) == len(batch.keys) and fingerprint(rows) == batch.fingerprint
        if not same or any(
            None not in key and key != logged for key, logged in zip(given, batch.keys, strict=True)
        ):
            raise SourceChanged(
                f"{str(batch).capitalize()} are not the same as when the load began: give the load "
                "the same rows in the same order, or roll it back."
            )
        rows = self.checked(self._with_keys(rows, batch.keys))
        return replace(batch, rows=rows, defaults=self.defaults())

    def checked(self, rows: list[Row]) -> list[Row]:
        """Return rows as they are inserted, or refuse them; for subclasses."""
        return rows

    def defaults(self) -> Mapping[str, Any]:
        """Return values for new rows that do not give their own; for subclasses."""
        return {}

    def _check_names(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if type(row) is not dict and not isinstance(row, Mapping):  # type() is fast
                raise ArgumentError(f"a row maps attribute names to values, unlike {row!r}")
            if row.keys() != self._names:
                self.destination.check_names(row)
                self._names = row.keys()

    def _zero_is_missing(self) -> bool:
        return (
            self.destination.server_makes_keys and not database_of_engine(self.engine).zero_is_a_key
        )

    def _make_key(self, row: Row) -> Key:
        if self.destination.make_key is None:
            self.destination.refuse_server_key(row)
        return (self.destination.make_key(),)

    def _with_keys(self, rows: list[Row], keys: Any) -> list[Row]:
        names = self.destination.key_names
        return [
            {**row, **dict(zip(names, key, strict=True))}
            for row, key in zip(rows, keys, strict=True)
        ]

    # -- writing --------------------------------------------------------

    def update(self, batch: RowBatch) -> None:
        """Insert a batch that is not in the table yet."""
        with self.open_writer("", 0) as writer:
            writer.update(batch, _UnloggedEntry())

    def rollback(self, batch: RowBatch) -> None:
        """Delete a batch that is in the table."""
        with self.open_writer("", 0) as writer:
            writer.rollback(batch, _UnloggedEntry(mark=INSERTED))

    def worker_count(self, wanted: int) -> int:
        """Return at most 1 where rows come in order, and 0 where the database has one writer."""
        if database_of_engine(self.engine).one_writer:
            return 0
        return 1 if self.destination.refers_to_itself else wanted

    def wait_for_slots(self, load: str, slots: int, wait: timedelta) -> None:
        """Wait until the server has ended a killed process's connections."""
        wait_for_slots(self.engine, load, slots, wait)

    @contextmanager
    def open_writer(self, load: str, slot: int) -> Iterator[RowWriter]:
        """Open a connection, which holds the lock of its slot for as long as it lives."""
        with connected(self.engine) as connection:
            if load:
                hold_slot(connection, load, slot, _WAIT)
            yield RowWriter(
                self.destination, connection, on_existing=self.on_existing, copy=self.copy
            )


class _UnloggedEntry(Entry):
    """An entry without a log."""

    def __init__(self, mark: int = INSERT_IN_DOUBT) -> None:
        super().__init__(None, 0, mark)  # type: ignore[arg-type]  # no method uses it

    @property
    def kept(self) -> Any:
        return None

    def before_commit(
        self, mark: int, connection: Connection | None = None, kept: Any = None
    ) -> None:
        """Write nothing."""

    def after_commit(self, mark: int) -> None:
        """Write nothing."""

    def not_committed(self) -> None:
        """Write nothing."""


def check_option(name: str, given: Any, allowed: Sequence[str]) -> None:
    """Refuse a word that an option does not have.

    Raises:
        ArgumentError: the message has the allowed words.
    """
    if given not in allowed:
        raise ArgumentError(f"{name} is one of {', '.join(allowed)}, not {given!r}")


def fingerprint(rows: list[Mapping[str, Any]]) -> int:
    """Return a checksum of the first and the last row, to notice rows that have moved.

    A checksum of all rows would cost as much as their insert.
    """
    if not rows:
        return 0
    values = [
        (name, repr(value) if isinstance(value, _PLAIN) else type(value).__name__)
        for row in (rows[0], rows[-1])
        for name, value in sorted(row.items())
    ]
    return crc32(repr(values).encode("utf-8", "surrogatepass"))


_PLAIN = (str, int, float, bytes, type(None))


def _checked_engine(engine: Engine) -> Engine:
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise ArgumentError(
            f"a bulk load needs an Engine, not {engine!r}. If you have an AsyncEngine, make an "
            "Engine with a synchronous driver for the same database."
        )
    return engine
