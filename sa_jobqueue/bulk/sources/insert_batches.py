"""One connection of a load: a transaction for each batch, and its mark in the log."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ...dialects import database_of, is_transient
from ...errors import ArgumentError, BatchInDoubt
from ...sessions.transactions import transaction
from ..log import INSERTED, REMOVED, Entry
from .copy import Copy, rows_by_names
from .keys import Key, read_keys, written_keys
from .target import Target

#: How often a batch is tried where the engine says that another try may do.
TRIES = 10

#: Seconds to wait before the second try, at most; the third waits twice as long.
_PAUSE = 0.05


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Some rows of a source.

    Attributes:
        index: that of its first row.
        place: where that begins in a file.
        keys: of all rows, in their order.
        print: what tells whether these are the same rows again.
        rows: by attribute names; empty where they are not needed.
        common: what new rows have that do not say their own.
    """

    index: int
    place: int
    keys: Sequence[Key]
    print: int
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    common: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"rows {self.index:,} to {self.index + len(self.keys) - 1:,}"


class RowHand:
    """Insert batches and delete them, each in a transaction, on one connection.

    Args:
        on_existing: what becomes of rows that were there before: "error", "keep" or
            "update".
        copy: whether COPY may be used.
    """

    def __init__(
        self, target: Target, connection: Connection, *, on_existing: str, copy: bool
    ) -> None:
        self._target = target
        self._connection = connection
        self._on_existing = on_existing
        self._may_copy = copy
        self._copies: dict[tuple[str, ...], Copy | None] = {}

    def update(self, batch: RowBatch, entry: Entry) -> None:
        """Insert a batch, and have its entry written."""
        before = entry.kept
        there: set[Key] = set()

        def write() -> None:
            nonlocal there
            there = self._there(batch)
            kept = self._bring_in(batch, there, before, doubtful=entry.doubtful)
            entry.before_commit(INSERTED, self._connection, kept)

        def somebody_was_first(error: DBAPIError) -> bool:
            return isinstance(error, IntegrityError) and self._there_now(batch) != there

        try:
            self._patiently(write, entry, somebody_was_first)
        except IntegrityError as error:
            error.add_note(f"Of the batch with {batch} nothing was inserted.")
            raise
        entry.after_commit(INSERTED)

    def rollback(self, batch: RowBatch, entry: Entry) -> None:
        """Delete a batch, and have its entry written."""
        kept = entry.kept  # not inside: in memory, the log may share our connection

        def write() -> None:
            ours = _without(batch.keys, kept)
            if entry.doubtful and not self._is_in(batch, ours):
                ours = []
            self._target.delete(self._connection, ours)
            entry.before_commit(REMOVED, self._connection, kept)

        self._patiently(write, entry)
        entry.after_commit(REMOVED)

    # -- transactions ---------------------------------------------------

    def _patiently(
        self,
        write: Callable[[], None],
        entry: Entry,
        mended: Callable[[DBAPIError], bool] = lambda error: False,
    ) -> None:
        """Commit what is written; try again where the error is not for good.

        Args:
            mended: tells of an error that is for good to the engine whether it is not.
        """
        for tried in range(1, TRIES + 1):
            try:
                with transaction(self._connection):
                    write()
                return
            except DBAPIError as error:
                # A connection that is lost in its COMMIT leaves us in doubt; any other
                # answer of the server says that nothing was committed.
                if error.connection_invalidated:
                    raise
                entry.not_committed()
                if tried == TRIES or not (is_transient(error) or mended(error)):
                    raise
            time.sleep(random.uniform(0, _PAUSE * tried))

    # -- inserting ------------------------------------------------------

    def _there(self, batch: RowBatch) -> set[Key]:
        """Return the keys that have rows already; none where that is an error anyway."""
        if self._on_existing == "error":
            return set()
        return set(self._target.taken(self._connection, list(dict.fromkeys(batch.keys))))

    def _there_now(self, batch: RowBatch) -> set[Key]:
        with transaction(self._connection):
            return self._there(batch)

    def _bring_in(self, batch: RowBatch, there: set[Key], before: Any, *, doubtful: bool) -> Any:
        """Insert what is not there yet; return what of it was there before the load."""
        if doubtful:
            ours = _without(batch.keys, before)
            if self._is_in(batch, ours):
                return before
        if self._on_existing == "error":
            self._insert_found(batch, batch.keys, batch.rows)
            return None
        rows = _by_key(batch, updates=self._on_existing == "update")
        new = [key for key in rows if key not in there]
        self._insert_found(batch, new, [rows[key] for key in new])
        if self._on_existing == "update":
            self._update([row for key, row in rows.items() if key in there])
        return written_keys(list(there)) if there else None

    def _insert_found(
        self, batch: RowBatch, keys: Sequence[Key], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows; refuse keys by which the server does not find them again.

        Raises:
            ArgumentError: it would keep them otherwise than they were given.
        """
        if batch.common:
            rows = [{**batch.common, **row} for row in rows]
        self._insert(rows)
        kept = database_of(self._connection).kept_as_given
        if not keys or all(isinstance(value, kept) for value in keys[0]):
            return
        lost = len(keys) - len(self._target.existing(self._connection, keys))
        if lost:
            raise ArgumentError(
                f"{lost:,} of {len(keys):,} rows ({batch}) are not found by their keys after the "
                f"insert: {self._target.name} keeps these otherwise, as a time without its "
                "fractions, or a number rounded. A rollback would not find them either, so "
                "nothing of the batch was inserted. Give the keys as their columns keep them."
            )

    def _is_in(self, batch: RowBatch, ours: Sequence[Key]) -> bool:
        """Tell whether a batch in doubt was committed: it is whole, or not there at all.

        Raises:
            BatchInDoubt: it is neither; somebody else has been at these keys since.
        """
        there = len(self._target.existing(self._connection, ours))
        if 0 < there < len(ours):
            raise BatchInDoubt(
                f"The load was killed in the commit of a batch ({batch}), and {there:,} of its "
                f"{len(ours):,} rows are in {self._target.name}: either it was committed, and "
                "others have deleted rows of it since, or it was not, and others have inserted "
                f"rows with its keys ({ours[0]} and on). Nothing was changed. Delete those rows, "
                "or insert the missing ones, and call again. A DatabaseLog has no such doubts."
            )
        return there > 0

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        plain = self._target.plain
        if plain is None:
            with Session(self._connection) as session:
                for _, alike in rows_by_names(rows):
                    session.execute(insert(self._target.entity), alike)
            return
        if any(name != key for name, key in plain.items()):
            rows = [{plain[name]: value for name, value in row.items()} for row in rows]
        for names, alike in rows_by_names(rows):
            copy = self._copy_of(names)
            if copy is None or not copy.insert(self._connection, alike):
                self._connection.execute(insert(self._target.tables[0]), alike)

    def _copy_of(self, names: tuple[str, ...]) -> Copy | None:
        if not self._may_copy:
            return None
        if names not in self._copies:
            self._copies[names] = Copy.of(self._connection, self._target.tables[0], names)
        return self._copies[names]

    def _update(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._target.plain is None:
            with Session(self._connection) as session:
                for _, alike in rows_by_names(rows):
                    session.execute(update(self._target.entity), alike)
            return
        for names, alike in rows_by_names(rows):
            self._update_by_key(names, alike)

    def _update_by_key(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        target, plain = self._target, self._target.plain or {}
        changed = [name for name in names if name not in target.key_names]
        if not changed:
            return
        statement = update(target.tables[0]).values(
            {plain[name]: bindparam(f"new_{name}") for name in changed}
        )
        for name, key in zip(target.key_names, target.keys, strict=True):
            statement = statement.where(key == bindparam(f"its_{name}"))
        self._connection.execute(
            statement,
            [
                {
                    f"{'its' if name in target.key_names else 'new'}_{name}": row[name]
                    for name in row
                }
                for row in rows
            ],
        )


def _without(keys: Sequence[Key], kept: Any) -> list[Key]:
    """Return the keys of a load's own rows, each once."""
    before = set(read_keys(kept)) if kept else set()
    return [key for key in dict.fromkeys(keys) if key not in before]


def _by_key(batch: RowBatch, *, updates: bool) -> dict[Key, Mapping[str, Any]]:
    """Make one row of those with the same key: the first, as the later ones update it or not."""
    rows: dict[Key, Mapping[str, Any]] = {}
    for key, row in zip(batch.keys, batch.rows, strict=True):
        if key not in rows:
            rows[key] = row
        elif updates:
            rows[key] = {**rows[key], **row}
    return rows
