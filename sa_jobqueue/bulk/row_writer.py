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
from uuid import UUID

from sqlalchemy import Connection, Engine, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import database_of, is_transient
from ..dialects.named_locks import ConnectionLocks, Deadline
from ..errors import ArgumentError, BatchInDoubt, LockTimeout, UnsupportedDatabase
from ..sessions.transactions import TRIES, connected_outside_pool, transaction
from .copy import Copy
from .destination import Destination, Key, decode_keys, encode_keys
from .log import INSERTED, REMOVED, Entry
from .source import Writer

#: Seconds between two tries to take the lock; at most so many before the second try of a
#: batch, and twice as many before the third.
_PAUSE = 0.05


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


class RowWriter(Writer[RowBatch]):
    """Insert batches and delete them, each in a transaction, on one connection.

    Args:
        keep: rows that were in the table before stay; otherwise they are an error.
        defaults: values for new rows that do not give their own.
    """

    def __init__(
        self,
        destination: Destination,
        connection: Connection,
        *,
        keep: bool,
        defaults: Mapping[str, Any],
    ) -> None:
        self._destination = destination
        self._connection = connection
        self._keep = keep
        self._defaults = {**destination.defaults, **defaults}
        self._copies: dict[tuple[str, ...], Copy | None] = {}

    def update(self, batch: RowBatch, entry: Entry) -> None:
        def write(kept: Any) -> Any:
            if not (entry.in_doubt and self._was_committed(batch, kept)):
                kept = encode_keys(self._bring_in(batch))
            return kept

        self._commit(INSERTED, write, batch, entry)

    def rollback(self, batch: RowBatch, entry: Entry) -> None:
        def write(kept: Any) -> None:
            if not entry.in_doubt or self._was_committed(batch, kept):
                self._destination.delete(self._connection, _without(batch.keys, kept))

        self._commit(REMOVED, write, batch, entry)

    def _commit(
        self, mark: int, write: Callable[[Any], Any], batch: RowBatch, entry: Entry
    ) -> None:
        """Write and commit with a mark; try again after a transient error."""
        kept = entry.log.kept(
            entry.number
        )  # outside our transaction: in memory, the log may share our connection
        for tries in range(1, TRIES + 1):
            try:
                with transaction(self._connection):
                    entry.before_commit(mark, self._connection, write(kept))
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
                entry.after_commit(mark)
                return
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
        keys, rows, existing = batch.keys, batch.rows, set[Key]()
        if self._keep:
            new = dict(zip(reversed(keys), reversed(rows), strict=True))  # the first of equals
            existing = self._destination.taken(self._connection, list(new))
            keys = [key for key in dict.fromkeys(keys) if key not in existing]
            rows = [new[key] for key in keys]
        if keys:
            self._insert(rows)
            self._check_found(keys, batch)
        return list(existing)

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:  # one INSERT for each set of columns
            values = {**self._defaults, **row}
            groups.setdefault(tuple(values), []).append(values)
        for names, alike in groups.items():
            self._insert_alike(names, alike)

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

    def _check_found(self, keys: Sequence[Key], batch: RowBatch) -> None:
        """Refuse keys by which the server does not find the rows again.

        Raises:
            ArgumentError: the server stores keys in another form than they were given.
        """
        if all(isinstance(value, int | UUID) for value in keys[0]) and (0,) not in keys:
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
        time.sleep(_PAUSE)
    connection.commit()
