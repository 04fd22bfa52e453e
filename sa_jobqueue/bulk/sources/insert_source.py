"""Rows of any mapped class, as a source.

::

    InsertSource(engine, Email, rows, total=1_000_000)      # mappings, lazily
    InsertSource(engine, Email, Path("emails.csv"))         # or emails.jsonl

A row needs a key before it is inserted: given, or made by the class (a UUID, or a
default that is a function). Keys of the server are refused.

Limits: a function that makes rows, or a generator, yields the same rows in the same
order when the load goes on. What depends on defaults of the server is not undone by
a rollback: sequences, triggers, rows of other tables.
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

from ...dialects import database_of, database_of_engine
from ...errors import ArgumentError, SourceChanged
from ...owners.named_lock import checked_engine
from ...sessions.transactions import connected_outside_pool
from ..log import INSERTED, INSERTING_IT, Entry
from ..source import DivisibleSource, Metadata
from .insert_batches import RowBatch, RowHand
from .keys import Key, read_keys, written_keys
from .predecessors import await_predecessors, hold_slot
from .row_files import rows_from
from .rows import Row
from .target import Target

#: Rows of a batch.
BATCH_SIZE = 5_000

#: How long a connection waits for that of a load before it, in the same slot.
_WAIT = timedelta(seconds=60)

OnExisting = Literal["error", "keep", "update"]


class InsertSource(DivisibleSource[RowBatch]):
    """Insert rows of a mapped class, batch by batch.

    Args:
        engine: where to; each worker has a connection of its own, outside of its pool.
        entity: a mapped class.
        rows: an iterable of mappings from attribute names to values, a function that
            returns one, or the path of a .csv, .jsonl or .ndjson file.
        total: how many there are; by default what ``len()`` says. More or fewer are
            an error.
        batch_size: rows of a transaction.
        on_existing: what becomes of a row whose key was in the table before: with
            "error" the load ends there, "keep" leaves the old row, "update" gives it
            the new values. None of them is ever deleted by a rollback.
        copy: whether COPY is used where the driver has it and the rows allow it.

    Raises:
        ArgumentError: one of these cannot be.
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
        if on_existing not in get_args(OnExisting):
            raise ArgumentError(
                f"on_existing is one of {', '.join(get_args(OnExisting))}: {on_existing!r}"
            )
        self.engine = checked_engine(engine, "a bulk load")
        self.target = Target(entity)
        self.rows = rows_from(rows, self.target.types)
        self.total = self._counted(total)
        self.batch_size = batch_size
        self.on_existing: OnExisting = on_existing
        self.copy = copy
        self._names: Any = None
        self._rows_then: Any = None
        self._total_then: int | None = None
        Metadata(total=self.total, batch_size=batch_size)

    def _counted(self, total: int | None) -> int | None:
        there = self.rows.total
        if None not in (there, total) and there != total:
            raise ArgumentError(f"total is {total:,}, and there are {there:,} rows: leave it out")
        return there if total is None else total

    def metadata(self) -> Metadata:
        """Tell how many rows there are, into which table, and what their file is."""
        details = {"table": self.target.name, "rows": self.rows.details}
        return Metadata(total=self.total, batch_size=self.batch_size, details=details)

    def resume(self, metadata: Metadata) -> None:
        """Take the batch size back; refuse another table.

        A file that has changed is refused when it is read: a rollback needs none.
        """
        self._refuse_another("table", metadata.details.get("table"), self.target.name)
        self.batch_size = metadata.batch_size
        self._rows_then = metadata.details.get("rows")
        self._total_then = metadata.total

    def _refuse_another(self, what: str, then: Any, now: Any) -> None:
        if then != now:
            raise SourceChanged(
                f"The load began with the {what} {then!r}, and this is {now!r}: go on with the "
                "same, or call rollback()."
            )

    def _refuse_other_rows(self) -> None:
        if None not in (self._total_then, self.rows.total):
            self._refuse_another("total", self._total_then, self.rows.total)
        if self._rows_then is not None:
            self._refuse_another("rows", self._rows_then, self.rows.details)
            self._rows_then = None  # once is enough: it reads the file

    # -- batches --------------------------------------------------------

    def divide(self) -> Iterator[RowBatch]:
        """Yield the rows in batches, with keys."""
        return self._divided(0, 0, 0)

    def divide_after(self, count: int, last: RowBatch | None) -> Iterator[RowBatch]:
        """Yield the batches behind one, found again by its place."""
        if last is None:
            return self.divide()
        self._refuse_other_rows()
        if not self.rows.seeks:
            return self._divided(last.index + len(last.keys), 0, 0)
        return self._divided(last.index, last.place, len(last.keys))

    def encode(self, batch: RowBatch) -> Any:
        """Keep the keys, and where the rows are found again."""
        return {
            "row": batch.index,
            "place": batch.place,
            "print": batch.print,
            "keys": written_keys(batch.keys),
        }

    def decode(self, logged: Any) -> RowBatch:
        """Make a batch without its rows."""
        keys = read_keys(logged["keys"])
        return RowBatch(
            index=logged["row"], place=logged["place"], print=logged["print"], keys=keys
        )

    def refill(self, batches: Iterator[tuple[int, RowBatch]]) -> Iterator[tuple[int, RowBatch]]:
        """Read the rows of batches again; their keys are those of the log.

        Raises:
            SourceChanged: they are other rows now.
        """
        reading: Iterator[tuple[int, Row]] = iter(())
        at = -1
        for number, batch in batches:
            self._refuse_other_rows()
            if at < 0 or (at < batch.index and self.rows.seeks):
                reading, at = self.rows.read(batch.index, batch.place), batch.index
            found = list(islice(reading, batch.index - at, batch.index - at + len(batch.keys)))
            at = batch.index + len(batch.keys)
            yield number, self._same(batch, [row for _, row in found])

    def _divided(self, index: int, place: int, skipped: int) -> Iterator[RowBatch]:
        reading = self.rows.read(index, place)
        for _ in islice(reading, skipped):
            pass
        index += skipped
        while found := list(islice(reading, self.batch_size)):
            yield self._batch(index, found[0][0], [row for _, row in found])
            index += len(found)
        if self.total is not None and index != self.total:
            raise ArgumentError(
                f"total is {self.total:,}, and there are {index:,} rows: leave it out, or say how "
                "many there are; then run() goes on"
            )

    def _batch(self, index: int, place: int, rows: list[Row]) -> RowBatch:
        self._check_names(rows)
        keys = self.target.keys_of_rows(rows)
        if (0,) in keys and self._zero_is_missing():
            raise ArgumentError(
                f"the key of a row of {self.target} is 0, for which this server would make "
                "another one: give it a number"
            )
        keyed = rows
        if None in chain.from_iterable(keys):
            keys = [
                key if None not in key else self._made(row)
                for key, row in zip(keys, rows, strict=True)
            ]
            keyed = self._keyed(rows, keys)
        return RowBatch(
            index=index,
            place=place,
            keys=keys,
            print=fingerprint(rows),
            rows=self.checked(keyed),
            common=self.common(),
        )

    def _same(self, batch: RowBatch, rows: list[Row]) -> RowBatch:
        self._check_names(rows)
        given = self.target.keys_of_rows(rows)
        same = len(given) == len(batch.keys) and fingerprint(rows) == batch.print
        if not same or any(
            None not in key and key != logged for key, logged in zip(given, batch.keys, strict=True)
        ):
            raise SourceChanged(
                f"{str(batch).capitalize()} are not the same as when the load began: give it the "
                "same rows in the same order, or roll it back."
            )
        rows = self.checked(self._keyed(rows, batch.keys))
        return replace(batch, rows=rows, common=self.common())

    def checked(self, rows: list[Row]) -> list[Row]:
        """Return rows as they are inserted; for subclasses."""
        return rows

    def common(self) -> Mapping[str, Any]:
        """Return what new rows have that do not say their own; for subclasses."""
        return {}

    def _check_names(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if type(row) is not dict and not isinstance(row, Mapping):  # the first is fast
                raise ArgumentError(f"a row maps attribute names to values; this is none: {row!r}")
            if row.keys() != self._names:
                self.target.check_names(row)
                self._names = row.keys()

    def _zero_is_missing(self) -> bool:
        return self.target.server_makes_keys and not database_of_engine(self.engine).zero_is_a_key

    def _made(self, row: Row) -> Key:
        if self.target.make_key is None:
            self.target.refuse_server_key(row)
            raise AssertionError
        return (self.target.make_key(),)

    def _keyed(self, rows: list[Row], keys: Any) -> list[Row]:
        names = self.target.key_names
        return [
            {**row, **dict(zip(names, key, strict=True))}
            for row, key in zip(rows, keys, strict=True)
        ]

    # -- work -----------------------------------------------------------

    def update(self, batch: RowBatch) -> None:
        """Insert a batch, if it is not there yet."""
        with self.at_work("", 0) as hand:
            hand.update(batch, _Unlogged())

    def rollback(self, batch: RowBatch) -> None:
        """Delete a batch, if it is there."""
        with self.at_work("", 0) as hand:
            hand.rollback(batch, _Unlogged(mark=INSERTED))

    def workers_of(self, wanted: int) -> int:
        """Return no more than one where rows have to come in order, or the database has no more."""
        if database_of_engine(self.engine).one_writer:
            return 0
        return 1 if self.target.refers_to_itself else wanted

    def await_predecessors(self, load: str, slots: int, wait: timedelta) -> None:
        """Wait until the server has ended what a killed process began."""
        await_predecessors(self.engine, load, slots, wait)

    @contextmanager
    def at_work(self, load: str, slot: int) -> Iterator[RowHand]:
        """Open a connection that holds the lock of its slot as long as it lives."""
        with connected(self.engine) as connection:
            if load:
                hold_slot(connection, load, slot, _WAIT)
            yield RowHand(self.target, connection, on_existing=self.on_existing, copy=self.copy)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Connect beside the pool, but to a database in memory, which has one connection."""
    with engine.connect() as connection:
        if not database_of(connection).seen_by_others(connection):
            yield connection
            return
    with connected_outside_pool(engine) as connection:
        yield connection


class _Unlogged(Entry):
    """An entry of no log."""

    def __init__(self, mark: int = INSERTING_IT) -> None:
        super().__init__(None, 0, mark)  # type: ignore[arg-type]  # nothing here asks for it

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


def fingerprint(rows: list[Mapping[str, Any]]) -> int:
    """Return a number that tells whether rows have moved: of the first and the last of them.

    Of all rows it would cost as much as their insert.
    """
    if not rows:
        return 0
    told = [
        (name, repr(value) if isinstance(value, _PLAIN) else type(value).__name__)
        for row in (rows[0], rows[-1])
        for name, value in sorted(row.items())
    ]
    return crc32(repr(told).encode("utf-8", "surrogatepass"))


_PLAIN = (str, int, float, bytes, type(None))
