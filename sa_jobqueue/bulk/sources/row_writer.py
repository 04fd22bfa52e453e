"""Insert and delete batches of rows, each in a transaction with its mark in the log."""

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
from .copy import Copy
from .destination import Destination
from .keys import Key, decode_keys, encode_keys
from .rows import group_by_columns

#: How often a batch is tried while its errors are transient.
TRIES = 10

#: Seconds before the second try, at most; the wait before the third is twice as long.
_PAUSE = 0.05


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Some rows of a source.

    Attributes:
        index: the index of the first row.
        offset: the byte offset of the first row in its file.
        keys: the keys of all rows, in their order.
        fingerprint: differs where these are not the same rows again.
        rows: mappings by attribute names; empty where they are not needed.
        defaults: values for new rows that do not give their own.
    """

    index: int
    offset: int
    keys: Sequence[Key]
    fingerprint: int
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"rows {self.index:,} to {self.index + len(self.keys) - 1:,}"


class RowWriter:
    """Insert batches and delete them, each in a transaction, on one connection.

    Args:
        on_existing: what happens to rows that were in the table before: "error",
            "keep" or "update".
        copy: whether COPY may be used.
    """

    def __init__(
        self, destination: Destination, connection: Connection, *, on_existing: str, copy: bool
    ) -> None:
        self._destination = destination
        self._connection = connection
        self._on_existing = on_existing
        self._may_copy = copy
        self._copies: dict[tuple[str, ...], Copy | None] = {}

    def update(self, batch: RowBatch, entry: Entry) -> None:
        """Insert a batch, and write its entry."""
        kept_before = entry.kept
        existing: set[Key] = set()

        def write() -> None:
            nonlocal existing
            existing = self._existing(batch)
            kept = self._bring_in(batch, existing, kept_before, in_doubt=entry.in_doubt)
            entry.before_commit(INSERTED, self._connection, kept)

        def others_were_first(error: DBAPIError) -> bool:
            return isinstance(error, IntegrityError) and self._existing_now(batch) != existing

        try:
            self._with_retries(write, entry, others_were_first)
        except IntegrityError as error:
            error.add_note(f"Nothing was inserted of the batch with {batch}.")
            raise
        entry.after_commit(INSERTED)

    def rollback(self, batch: RowBatch, entry: Entry) -> None:
        """Delete a batch, and write its entry."""
        # Outside our transaction: in memory, the log may share our connection.
        kept = entry.kept

        def write() -> None:
            ours = _without(batch.keys, kept)
            if entry.in_doubt and not self._was_committed(batch, ours):
                ours = []
            self._destination.delete(self._connection, ours)
            entry.before_commit(REMOVED, self._connection, kept)

        self._with_retries(write, entry)
        entry.after_commit(REMOVED)

    # -- transactions ---------------------------------------------------

    def _with_retries(
        self,
        write: Callable[[], None],
        entry: Entry,
        worth_a_retry: Callable[[DBAPIError], bool] = lambda error: False,
    ) -> None:
        """Write and commit; try again after a transient error.

        Args:
            worth_a_retry: tells whether to try again after an error that is not
                transient.
        """
        for tries in range(1, TRIES + 1):
            try:
                with transaction(self._connection):
                    write()
                return
            except DBAPIError as error:
                # A connection lost in its COMMIT leaves us in doubt; every other
                # error means that nothing was committed.
                if error.connection_invalidated:
                    raise
                entry.not_committed()
                if tries == TRIES or not (is_transient(error) or worth_a_retry(error)):
                    raise
            time.sleep(random.uniform(0, _PAUSE * tries))

    # -- inserting ------------------------------------------------------

    def _existing(self, batch: RowBatch) -> set[Key]:
        """Return the keys that have rows already; none where such a row is an error anyway."""
        if self._on_existing == "error":
            return set()
        return set(self._destination.taken(self._connection, list(dict.fromkeys(batch.keys))))

    def _existing_now(self, batch: RowBatch) -> set[Key]:
        with transaction(self._connection):
            return self._existing(batch)

    def _bring_in(
        self, batch: RowBatch, existing: set[Key], kept_before: Any, *, in_doubt: bool
    ) -> Any:
        """Insert the rows that are missing; return the keys that were there before the load.

        Args:
            existing: the keys that are in the table now.
            kept_before: the keys that an earlier process has found there.
        """
        if in_doubt and self._was_committed(batch, _without(batch.keys, kept_before)):
            return kept_before
        if self._on_existing == "error":
            self._insert_and_check(batch, batch.keys, batch.rows)
            return None
        rows = _by_key(batch, updates=self._on_existing == "update")
        new = [key for key in rows if key not in existing]
        self._insert_and_check(batch, new, [rows[key] for key in new])
        if self._on_existing == "update":
            self._update([row for key, row in rows.items() if key in existing])
        return encode_keys(list(existing)) if existing else None

    def _insert_and_check(
        self, batch: RowBatch, keys: Sequence[Key], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows; refuse keys by which the server does not find them again.

        Raises:
            ArgumentError: the server stores keys in another form than they were given.
        """
        if batch.defaults:
            rows = [{**batch.defaults, **row} for row in rows]
        self._insert(rows)
        stored_as_given = database_of(self._connection).kept_as_given
        if not keys or all(isinstance(value, stored_as_given) for value in keys[0]):
            return
        lost = len(keys) - len(self._destination.existing(self._connection, keys))
        if lost:
            raise ArgumentError(
                f"{lost:,} of {len(keys):,} rows ({batch}) are not found by their keys after the "
                f"insert: {self._destination.name} stores them in another form, for instance a "
                "time without its fractions, or a rounded number. A rollback would not find them "
                "either, so nothing of the batch was inserted. Give the keys as their columns "
                "store them."
            )

    def _was_committed(self, batch: RowBatch, ours: Sequence[Key]) -> bool:
        """Tell whether a batch in doubt was committed: all of its rows are there, or none.

        Raises:
            BatchInDoubt: some of them are; others have written rows of these keys since.
        """
        found = len(self._destination.existing(self._connection, ours))
        if 0 < found < len(ours):
            raise BatchInDoubt(
                f"The load was killed in the commit of a batch ({batch}), and {found:,} of its "
                f"{len(ours):,} rows are in {self._destination.name}: either it was committed, and "
                "others have deleted rows of it since, or it was not, and others have inserted "
                f"rows with its keys (from {ours[0]} on). Nothing was changed. Delete those rows, "
                "or insert the missing ones, and call again. With a DatabaseLog no batch is ever "
                "in doubt."
            )
        return found > 0

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        plain = self._destination.plain
        if plain is None:
            with Session(self._connection) as session:
                for _, alike in group_by_columns(rows):
                    session.execute(insert(self._destination.entity), alike)
            return
        if any(name != key for name, key in plain.items()):
            rows = [{plain[name]: value for name, value in row.items()} for row in rows]
        for names, alike in group_by_columns(rows):
            copy = self._copy_of(names)
            if copy is None or not copy.insert(self._connection, alike):
                self._connection.execute(insert(self._destination.tables[0]), alike)

    def _copy_of(self, names: tuple[str, ...]) -> Copy | None:
        if not self._may_copy:
            return None
        if names not in self._copies:
            self._copies[names] = Copy.prepare(self._connection, self._destination.tables[0], names)
        return self._copies[names]

    def _update(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._destination.plain is None:
            with Session(self._connection) as session:
                for _, alike in group_by_columns(rows):
                    session.execute(update(self._destination.entity), alike)
            return
        for names, alike in group_by_columns(rows):
            self._update_by_key(names, alike)

    def _update_by_key(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        destination, plain = self._destination, self._destination.plain or {}
        changed = [name for name in names if name not in destination.key_names]
        if not changed:
            return
        statement = update(destination.tables[0]).values(
            {plain[name]: bindparam(f"sa_jobqueue_new_{name}") for name in changed}
        )
        for name, key in zip(destination.key_names, destination.keys, strict=True):
            statement = statement.where(key == bindparam(f"sa_jobqueue_its_{name}"))
        self._connection.execute(
            statement,
            [
                {
                    f"sa_jobqueue_{'its' if name in destination.key_names else 'new'}_{name}": row[
                        name
                    ]
                    for name in row
                }
                for row in rows
            ],
        )


def _without(keys: Sequence[Key], kept: Any) -> list[Key]:
    """Return each key once, without those that were in the table before the load."""
    foreign = set(decode_keys(kept)) if kept else set()
    return [key for key in dict.fromkeys(keys) if key not in foreign]


def _by_key(batch: RowBatch, *, updates: bool) -> dict[Key, Mapping[str, Any]]:
    """Merge rows with the same key: the first row stays, or later rows update it."""
    rows: dict[Key, Mapping[str, Any]] = {}
    for key, row in zip(batch.keys, batch.rows, strict=True):
        if key not in rows:
            rows[key] = row
        elif updates:
            rows[key] = {**rows[key], **row}
    return rows
