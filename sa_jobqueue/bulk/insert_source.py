"""Rows of any mapped class, as a source.

::

    InsertSource(engine, Email, rows, total=1_000_000)      # mappings, lazily

A row needs a key before it is inserted: the row gives it, or the class makes it (a
UUID, or a default that is a function). Keys that the server makes are refused.

Limits: a function that returns rows has to yield the same rows in the same order when
the load goes on. A rollback does not undo what the server does by itself: sequences,
triggers, rows of other tables.

::

    EnqueueSource(engine, Email, rows, visible="at the end")    # jobs

Until the end their status is ``loading``, which no claim looks for.

Limit of jobs: workers that delete finished jobs may delete all jobs of a batch before a killed load
goes on. With a FileLog, the load then inserts a batch in doubt again. A DatabaseLog leaves no
batch in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, get_args
from zlib import crc32

from sqlalchemy import Engine, select

from ..databases import database_of
from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError, SourceChanged
from ..model.mapping import mapping_of, word_of
from ..model.status import UNCLAIMED
from ..sessions.transactions import transaction
from .manager import Metadata, Source, Write
from .row_writer import (
    Destination,
    Key,
    RowBatch,
    RowWriter,
    connected,
    decode_keys,
    encode_keys,
    hold_lock,
)

#: Rows of a batch.
BATCH_SIZE = 5_000

Row = Mapping[str, Any]
OnExisting = Literal["error", "keep"]
Visible = Literal["as inserted", "at the end"]

#: The status of a job until its load is complete.
LOADING = "loading"


class InsertSource(Source[RowBatch]):
    """Insert rows of a mapped class, batch by batch.

    Args:
        engine: an engine of the database to load; the load has a connection of its own,
            outside the engine's pool.
        entity: a mapped class.
        rows: an iterable of mappings from attribute names to values, or a function that
            returns such an iterable.
        total: how many rows there are; by default their ``len()``. Any other number of
            rows is an error.
        batch_size: rows of a transaction.
        on_existing: what happens to a row whose key was in the table before: "error"
            ends the load, "keep" leaves the old row. A rollback never deletes such a row.

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
    ) -> None:
        if not isinstance(engine, Engine) or engine.dialect.is_async:
            raise ArgumentError(
                f"a bulk load needs an Engine, not {engine!r}. If you have an AsyncEngine, make an "
                "Engine with a synchronous driver for the same database."
            )
        check_option("on_existing", on_existing, get_args(OnExisting))
        self.engine = engine
        self.destination = Destination(entity)
        self._rows = _Rows(rows)
        self.total = self._rows.total if total is None else total
        self.batch_size = batch_size
        self.on_existing: OnExisting = on_existing
        self._logged_total: int | None = None
        Metadata(total=self.total, batch_size=batch_size)  # checks both

    def metadata(self) -> Metadata:
        """Return how many rows there are, and the table."""
        details = {"table": self.destination.name}
        return Metadata(total=self.total, batch_size=self.batch_size, details=details)

    def resume(self, metadata: Metadata) -> None:
        """Accept the batch size that the load began with; refuse another table.

        Another total is refused only when rows are read, since a rollback reads none.
        """
        self._check_same("table", metadata.details.get("table"), self.destination.name)
        self.batch_size = metadata.batch_size
        self._logged_total = metadata.total

    def _check_same(self, name: str, logged: Any, given: Any) -> None:
        if logged != given:
            raise SourceChanged(
                f"The load began with the {name} {logged!r}, and this is {given!r}: go on with the "
                "same, or call rollback()."
            )

    # -- batches --------------------------------------------------------

    def divide(self) -> Iterator[RowBatch]:
        return self.divide_after(0)

    def divide_after(self, count: int) -> Iterator[RowBatch]:
        """Yield the rows after the first `count` batches, with keys."""
        if None not in (self._logged_total, self._rows.total):
            self._check_same("total", self._logged_total, self._rows.total)
        index = count * self.batch_size
        while rows := self._rows.take(index, self.batch_size):
            keys = list(map(self.destination.complete, self._keys_of(rows)))
            batch = RowBatch(index=index, keys=keys, fingerprint=_fingerprint(rows))
            yield self._filled(batch, rows)
            index += len(rows)
        if self.total is not None and self._rows.position != self.total:
            raise ArgumentError(
                f"total is {self.total:,}, but there are {self._rows.position:,} rows: leave it "
                "out, or give the right number; then run() goes on"
            )

    def encode(self, batch: RowBatch) -> Any:
        """Return the keys, and where the rows are found again."""
        return {
            "index": batch.index,
            "fingerprint": batch.fingerprint,
            "keys": encode_keys(batch.keys),
        }

    def decode(self, logged: Any) -> RowBatch:
        """Return the batch without its rows."""
        return RowBatch(**{**logged, "keys": decode_keys(logged["keys"])})

    def refill(self, batch: RowBatch) -> RowBatch:
        """Read the rows of a batch again; their keys stay those of the log.

        Raises:
            SourceChanged: the rows are not the same.
        """
        rows = self._rows.take(batch.index, len(batch.keys))
        given = self._keys_of(rows)
        if (
            len(given) != len(batch.keys)
            or _fingerprint(rows) != batch.fingerprint
            or any(None not in key and key != batch.keys[at] for at, key in enumerate(given))
        ):
            raise SourceChanged(
                f"{str(batch).capitalize()} are not the same as when the load began: give the load "
                "the same rows in the same order, or roll it back."
            )
        return self._filled(batch, rows)

    def _filled(self, batch: RowBatch, rows: list[Row]) -> RowBatch:
        names = self.destination.key_names
        keyed = (
            {**row, **dict(zip(names, key, strict=True))}
            for row, key in zip(rows, batch.keys, strict=True)
        )
        return replace(batch, rows=list(map(self.checked, keyed)))

    def _keys_of(self, rows: list[Row]) -> list[Key]:
        names: Any = None
        for row in rows:
            if not isinstance(row, dict | Mapping):  # dict is fast
                raise ArgumentError(f"a row maps attribute names to values, unlike {row!r}")
            if row.keys() != names:
                names = row.keys()
                if unknown := names - self.destination.columns.keys():
                    listed = ", ".join(sorted(map(str, unknown)))
                    raise ArgumentError(f"{self.destination} has no column {listed}")
        return self.destination.keys_of(rows)

    # -- writing --------------------------------------------------------

    def checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row as it is inserted, or refuse it; for subclasses."""
        return row

    def defaults(self) -> Mapping[str, Any]:
        """Return values for new rows that do not give their own; for subclasses."""
        return {}

    @contextmanager
    def open_writer(self, load: str, wait: timedelta) -> Iterator[Write[RowBatch]]:
        """Open a connection, which holds the load's lock for as long as it lives."""
        with connected(self.engine) as connection:
            hold_lock(connection, load, wait)
            yield RowWriter(
                destination=self.destination,
                connection=connection,
                keep=self.on_existing == "keep",
                defaults={**self.destination.defaults, **self.defaults()},
            ).write


class EnqueueSource(InsertSource):
    """Insert unclaimed jobs, batch by batch.

    Args:
        entity: a mapped class with JobMixin.
        visible: when jobs can be claimed: "as inserted", or "at the end", when all are
            in; then they become claimable a batch at a time.

    The other arguments are those of :class:`InsertSource`. Rows without ``run_at`` become due
    when the load begins.

    Raises:
        ArgumentError: an argument cannot work, or a row has a naive time.
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
        visible: Visible = "as inserted",
    ) -> None:
        check_option("visible", visible, get_args(Visible))
        super().__init__(
            engine, entity, rows, total=total, batch_size=batch_size, on_existing=on_existing
        )
        self.mapping = mapping_of(entity)
        self.visible: Visible = visible

    def metadata(self) -> Metadata:
        """Return how many jobs there are, and when they can be claimed."""
        metadata = super().metadata()
        return replace(metadata, details={**metadata.details, "visible": self.visible})

    def resume(self, metadata: Metadata) -> None:
        """Accept the batch size and the visibility that the load began with."""
        super().resume(metadata)
        self.visible = metadata.details["visible"]

    def checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """Refuse naive times; convert aware times to UTC."""
        for name in self.mapping.time_keys:
            value = row.get(name)
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ArgumentError(
                        f"{name}={value!r} has no time zone: give an aware datetime"
                    )
                row[name] = as_utc(value)
        return row

    def defaults(self) -> Mapping[str, Any]:
        """Return status and time of new jobs."""
        names = self.mapping.attributes
        word = LOADING if self.visible == "at the end" else self.mapping.word(UNCLAIMED)
        defaults: dict[str, Any] = {names["status"]: word_of(self.mapping, word)}
        if self.mapping.has("run_at"):
            # Bound as a value: COPY could not take a default in SQL.
            with self.engine.connect() as connection:
                defaults[names["run_at"]] = as_utc(
                    connection.execute(select(utc_now())).scalar_one()
                )
        return defaults

    def finish(self, batches: Iterator[RowBatch]) -> None:
        """Make the jobs claimable that are not claimable yet; tell the planner of all of them."""
        mapping = self.mapping
        rows, keys, table = 0, self.destination.keys, mapping.table
        with connected(self.engine) as connection:
            database = database_of(connection)
            change = (
                database.update_by_key(table, keys)
                .where(mapping.has_status(LOADING))
                .values({mapping.column("status"): mapping.literal(mapping.word(UNCLAIMED))})
            )
            for batch in batches:
                rows += len(batch.keys)
                if self.visible == "at the end":
                    with transaction(connection):
                        self.destination.execute_by_key(connection, change, keys, batch.keys)
            with transaction(connection):
                database.told_of_rows(connection, table, rows)


class _Rows:
    """Rows that are read forwards, and again from the beginning where that is possible.

    Attributes:
        total: how many there are; None: nobody knows.
        position: the index of the row that is read next.
    """

    def __init__(self, given: Any) -> None:
        iterable = isinstance(given, Iterable) and not isinstance(given, Mapping | str | bytes)
        if not (iterable or callable(given)):
            raise ArgumentError(
                "rows are an iterable of mappings, or a function that returns such an iterable; "
                f"a function can read a file. This is {given!r}"
            )
        self.total = len(given) if isinstance(given, Sized) else None
        self.position = 0
        self._given: Any = given
        self._reading: Iterator[Row] | None = None
        self._has_begun = False

    def take(self, index: int, count: int) -> list[Row]:
        """Return up to `count` rows from an index on."""
        reading, self._reading = self._reading, None  # after an error nothing goes on
        if reading is None or index < self.position:
            reading = self._begin(index)
        for _ in islice(reading, index - self.position):
            self.position += 1
        rows = list(islice(reading, count))
        self.position += len(rows)
        self._reading = reading
        return rows

    def _begin(self, index: int) -> Iterator[Row]:
        if self._has_begun and isinstance(self._given, Iterator):
            raise SourceChanged(
                f"row {index} is needed again, but this iterator has yielded {self.position} rows "
                "already: give a list, or a function that returns a new iterator"
            )
        self.position, self._has_begun = 0, True
        given: Any = self._given() if callable(self._given) else self._given
        return iter(given)


def check_option(name: str, given: Any, allowed: Any) -> None:
    """Refuse a word that an option does not have.

    Raises:
        ArgumentError: the message has the allowed words.
    """
    if given not in allowed:
        raise ArgumentError(f"{name} is one of {', '.join(allowed)}, not {given!r}")


def _fingerprint(rows: list[Row]) -> int:
    """Return a checksum of the first and the last row, to notice rows that have moved.

    A checksum of all rows would cost as much as their insert.
    """
    values = [
        (name, repr(value) if isinstance(value, _PLAIN) else type(value).__name__)
        for row in (*rows[:1], *rows[-1:])
        for name, value in sorted(row.items())
    ]
    return crc32(repr(values).encode("utf-8", "surrogatepass"))


_PLAIN = (str, int, float, bytes, type(None))
