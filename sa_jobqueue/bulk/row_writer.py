"""Insert and delete batches of rows, each in a transaction with its mark in the log.

A server finishes the statement of a killed client: a DELETE was seen to remove nothing,
and two seconds later 200 rows were there. So the connection of a load holds the load's lock
for as long as it lives, and the server frees the lock when the connection's last transaction
has ended; the next connection of the load waits for that. SQLite needs no lock: its
transactions end with their process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import database_of, is_transient
from ..dialects.named_locks import ConnectionLocks, Deadline
from ..errors import ArgumentError, BatchInDoubt, LockTimeout, UnsupportedDatabase
from ..sessions.transactions import TRIES, connected_outside_pool, transaction
from .copy import Copy
from .destination import Destination, Key, decode_keys, encode_keys
from .log import INSERTED, REMOVED, Entry

#: Seconds before the second try, at most; the wait before the third is twice as long.
_PAUSE = 0.05

#: Seconds between two tries to take the lock.
_RETRY = 0.05


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


class RowWriter:
    """Insert batches and delete them, each in a transaction, on one connection.

    Args:
        on_existing: what happens to rows that were in the table before: "error",
            "keep" or "update".
        defaults: values for new rows that do not give their own.
    """

    def __init__(
        self,
        destination: Destination,
        connection: Connection,
        *,
        on_existing: str,
        defaults: Mapping[str, Any],
    ) -> None:
        self._destination = destination
        self._connection = connection
        self._on_existing = on_existing
        self._defaults = defaults
        self._copies: dict[tuple[str, ...], Copy | None] = {}

    def update(self, batch: RowBatch, entry: Entry) -> None:
        """Insert a batch, and write its entry."""
        kept_before = entry.kept

        def write() -> None:
            kept = kept_before
            if not (entry.in_doubt and self._was_committed(batch, kept_before)):
                kept = encode_keys(self._bring_in(batch))
            entry.before_commit(INSERTED, self._connection, kept)

        self._commit(write, batch, entry)
        entry.after_commit(INSERTED)

    def rollback(self, batch: RowBatch, entry: Entry) -> None:
        """Delete a batch, and write its entry."""
        # Outside our transaction: in memory, the log may share our connection.
        kept = entry.kept

        def write() -> None:
            if not entry.in_doubt or self._was_committed(batch, kept):
                self._destination.delete(self._connection, _without(batch.keys, kept))
            entry.before_commit(REMOVED, self._connection)

        self._commit(write, batch, entry)
        entry.after_commit(REMOVED)

    def _commit(self, write: Callable[[], None], batch: RowBatch, entry: Entry) -> None:
        """Write and commit; try again after a transient error."""
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
                if tries == TRIES or not is_transient(error):
                    error.add_note(f"Nothing was written of the batch with {batch}.")
                    raise
            time.sleep(random.uniform(0, _PAUSE * tries))

    def _was_committed(self, batch: RowBatch, kept: Any) -> bool:
        """Tell whether a batch in doubt was committed: all of its rows are there, or none.

        Raises:
            BatchInDoubt: some of them are; others have written rows of these keys since.
        """
        ours = _without(batch.keys, kept)
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

    def _bring_in(self, batch: RowBatch) -> list[Key]:
        """Insert the rows that are missing; return the keys that were there before the load."""
        if self._on_existing == "error":
            self._insert(batch, batch.keys, batch.rows)
            return []
        updates = self._on_existing == "update"
        rows = _by_key(batch, updates=updates)
        existing = self._destination.taken(self._connection, list(rows))
        new = [key for key in rows if key not in existing]
        self._insert(batch, new, [rows[key] for key in new])
        if updates and existing:
            changed = [row for key, row in rows.items() if key in existing]
            with Session(self._connection) as session:
                for alike in _by_columns(changed).values():
                    session.execute(update(self._destination.entity), alike)
        return list(existing)

    def _insert(
        self, batch: RowBatch, keys: Sequence[Key], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows; refuse keys by which the server does not find them again.

        Raises:
            ArgumentError: the server stores keys in another form than they were given.
        """
        if not keys:
            return
        for names, alike in _by_columns({**self._defaults, **row} for row in rows).items():
            self._insert_alike(names, alike)
        database = database_of(self._connection)
        as_given = all(isinstance(value, database.kept_as_given) for value in keys[0])
        if as_given and (database.zero_is_a_key or (0,) not in keys):
            return
        lost = len(keys) - len(self._destination.existing(self._connection, keys))
        if lost:
            raise ArgumentError(
                f"{lost:,} of {len(keys):,} rows ({batch}) are not found by their keys after the "
                f"insert: {self._destination.name} stores them in another form, for instance a "
                "time without its fractions, a rounded number, or a new number in place of 0. A "
                "rollback would not find them either, so nothing of the batch was inserted. Give "
                "the keys as their columns store them."
            )

    def _insert_alike(self, names: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
        plain = self._destination.plain
        if plain is None:
            with Session(self._connection) as session:
                session.execute(insert(self._destination.entity), rows)
            return
        if any(plain[name] != name for name in names):
            rows = [{plain[name]: value for name, value in row.items()} for row in rows]
        table = self._destination.tables[0]
        if names not in self._copies:
            columns = [plain[name] for name in names]
            self._copies[names] = Copy.prepare(self._connection, table, columns)
        copy = self._copies[names]
        if copy is None or not copy.insert(self._connection, rows):
            self._connection.execute(insert(table), rows)


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


def _by_columns(rows: Any) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Group rows that have the same columns; their order within a group stays."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    return groups


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
    locks = database.named_locks()
    if not isinstance(locks, ConnectionLocks):
        return
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            f"This connection to {database} goes through a connection pooler, so a bulk load could "
            "not tell when the transactions of a killed process have ended. Give the source an "
            "engine whose URL names the server itself."
        )
    database.notice_silence(connection)
    key, deadline = locks.key(connection, f"bulk load {load}"), Deadline(wait)
    while not locks.take(connection, key=key, seconds=0):
        if deadline.passed:
            raise LockTimeout(
                f"The server still works for this load, as {locks.find_holder(connection, key)}: "
                "wait until it has finished, or end that connection."
            )
        connection.rollback()
        time.sleep(_RETRY)
    connection.commit()
