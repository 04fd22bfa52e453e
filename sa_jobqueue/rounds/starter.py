"""How a round is started: take its number, then put rows into it chunk by chunk.

A chunk is one UPDATE of rows whose keys a plain read has found along the primary key. Why
every row is put in exactly once:

* The number is the primary key of a row in the table of the rounds. So two starters cannot
  take the same number: the second waits until the first starter's transaction has ended.
* A row is put in where its round is older. So no row is put in twice, however often the
  chunks are repeated, and no row leaves a newer round.
* With an Engine, ``started_at`` of the round is NULL until its last chunk, and the starter
  holds a named lock, which dies with its process. If ``started_at`` is NULL and nobody holds
  the lock, the start was interrupted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Engine,
    Table,
    and_,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from ..dialects import is_integrity_error
from ..dialects.clock import utc_now
from ..events.claimable import note_claimable
from ..events.event import Event
from ..events.notes import tell
from ..model.keys import by_key, key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.round_table import round_table
from ..model.status import CLAIMED, UNCLAIMED, status_is
from ..model.transitions import left_by, put_in_round, words_of
from ..owners.named_lock import named_lock
from ..sessions.show import show_expired
from ..sessions.transactions import run_with_retries
from ..sessions.writer import Writer, writing

log = logging.getLogger("sa_jobqueue.rounds")

R = TypeVar("R")

_KEYS = "sa_jobqueue_keys"
_SAVEPOINT = "sa_jobqueue_round"


@dataclass(frozen=True)
class RoundStart:
    """How far the start of a round is.

    Attributes:
        round: its number.
        rows: how many rows this call has put into it so far, with the claimed rows that
            will join it.
        skipped: how many rows it has left alone, since their status is a JobQueue's own, or
            since a newer round has taken them meanwhile. With ``chunk=None`` it is 0.
    """

    round: int
    rows: int
    skipped: int


@dataclass(frozen=True)
class Chunk:
    """What one UPDATE has done, and the last key of it; None if no rows are left."""

    rows: int
    skipped: int
    last: tuple[Any, ...] | None


_NOTHING_LEFT = Chunk(rows=0, skipped=0, last=None)


@dataclass(frozen=True)
class RoundStarter:
    """One call of start_round().

    Attributes:
        where: which rows to put into the round.
        chunk: how many rows one UPDATE takes; None for all.
        on_progress: called after each chunk.
    """

    mapping: QueueMapping
    where: Sequence[ColumnElement[bool]]
    chunk: int | None
    on_progress: Callable[[RoundStart], object] | None

    @cached_property
    def rounds(self) -> Table:
        """The table of the rounds."""
        return round_table(self.mapping)

    # -- in the caller's transaction ------------------------------------

    def start_in_transaction(self, writer: Writer) -> int:
        """Start a round in an open transaction; return its number."""
        writer.lock_writes(self.mapping.table)
        number = self._take_number(writer, started=True)
        self._end_unfinished(writer)
        self._put_all_chunks(number, partial(self._put_chunk, writer, number))
        loaded = writer.session.identity_map.values()
        of_class = [entity for entity in loaded if isinstance(entity, self.mapping.entity)]
        show_expired(writer.session, self.mapping, of_class)
        return number

    def _end_unfinished(self, writer: Writer) -> None:
        """Mark unfinished starts of the same criteria as started: our round takes their rows.

        A start that is still under way then ends.
        """
        found = select(self.rounds.c.round).where(*self._is_unfinished(writer))
        for older in list(writer.core(found).scalars()):
            self._mark_started(writer, older)

    # -- in transactions of our own -------------------------------------

    def start_in_chunks(self, engine: Engine) -> int:
        """Start a round and commit each chunk, or finish an interrupted start."""
        with named_lock(engine, f"sa_jobqueue rounds of {self.mapping.table.fullname}") as lock:
            number = self._run(engine, self._take_or_resume_number)

            def put(after: tuple[Any, ...] | None) -> Chunk:
                lock.check()
                chunk = self._run(engine, lambda writer: self._put_if_open(writer, number, after))
                if self.mapping.listeners and chunk.rows:
                    tell(self.mapping, round_event(self.mapping, chunk.rows))
                return chunk

            self._put_all_chunks(number, put)
        return number

    def _run(self, engine: Engine, work: Callable[[Writer], R]) -> R:
        def in_session(session: Session) -> R:
            with writing(session, self.mapping) as writer, writer.atomically():
                writer.lock_writes(self.mapping.table)
                return work(writer)

        return run_with_retries(engine, in_session)

    def _take_or_resume_number(self, writer: Writer) -> int:
        found = select(func.max(self.rounds.c.round)).where(*self._is_unfinished(writer))
        number: int | None = writer.core(found).scalar()
        if number is None:
            return self._take_number(writer, started=False)
        log.info("%s: resuming round %d, whose start was interrupted", self.mapping, number)
        return number

    def _put_if_open(self, writer: Writer, number: int, after: tuple[Any, ...] | None) -> Chunk:
        """Put in the next chunk, unless a start in a Session has ended ours.

        The lock of the round's row also makes us wait for the last statement of a killed
        starter, which the server may still be running.
        """
        rounds = self.rounds.c
        found = select(rounds.round).where(rounds.round == number, rounds.started_at.is_(None))
        if writer.core(found.with_for_update()).first() is None:
            return _NOTHING_LEFT
        chunk = self._put_chunk(writer, number, after)
        if self.mapping.wakes and chunk.rows:
            note_claimable(writer, self.mapping)
        if chunk.last is None:
            self._mark_started(writer, number)
        return chunk

    # -- the round's number ---------------------------------------------

    def _take_number(self, writer: Writer, *, started: bool) -> int:
        """Take the next number; wait for a transaction that is taking the same number."""
        number = self._highest_number(writer) + 1
        while not self._insert_number(writer, number, started=started):
            number += 1
        log.info("%s: starting round %d", self.mapping, number)
        return number

    def _highest_number(self, writer: Writer) -> int:
        highest: int | None = writer.core(select(func.max(self.rounds.c.round))).scalar()
        if highest is None:  # the rounds may be older than their table
            column = self.mapping.column("round")
            highest = writer.core(select(func.max(func.abs(column)))).scalar()
        return highest or 0

    def _insert_number(self, writer: Writer, number: int, *, started: bool) -> bool:
        """Insert the round's row; tell whether the number was free."""
        values = {"round": number, "criteria": self._digest(writer), "begun_at": utc_now()}
        if started:
            values["started_at"] = utc_now()
        writer.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        try:
            writer.core(insert(self.rounds).values(values))
        except Exception as error:  # a handle_error listener may raise what it likes
            if not is_integrity_error(error):
                raise
            writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return False
        writer.connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return True

    def _is_unfinished(self, writer: Writer) -> list[ColumnElement[bool]]:
        rounds = self.rounds.c
        return [rounds.criteria == self._digest(writer), rounds.started_at.is_(None)]

    def _mark_started(self, writer: Writer, number: int) -> None:
        started = update(self.rounds).where(self.rounds.c.round == number)
        writer.core(started.values(started_at=utc_now()))

    def _digest(self, writer: Writer) -> str:
        """Hash the criteria with their values; the hash is the same in each process."""
        compiled = and_(True, *self.where).compile(dialect=writer.connection.dialect)
        values = sorted((name, _value_text(value)) for name, value in compiled.params.items())
        text = f"{self.mapping} {compiled} {values}"
        return hashlib.sha256(text.encode()).hexdigest()

    # -- its rows -------------------------------------------------------

    def _put_all_chunks(self, number: int, put: Callable[[tuple[Any, ...] | None], Chunk]) -> None:
        """Put in chunk after chunk, and report each."""
        rows = skipped = 0
        last: tuple[Any, ...] | None = None
        while True:
            chunk = put(last)
            rows, skipped, last = rows + chunk.rows, skipped + chunk.skipped, chunk.last
            log.debug("%s: %d rows are in round %d", self.mapping, rows, number)
            if self.on_progress is not None:
                self.on_progress(RoundStart(number, rows, skipped))
            if last is None:
                break
        if skipped:
            log.warning("%s: %d rows were left out of round %d", self.mapping, skipped, number)

    def _put_chunk(self, writer: Writer, number: int, after: tuple[Any, ...] | None) -> Chunk:
        if self.chunk is None and self._by_one_update(writer):
            put = self._update(writer, number).where(*self.where)
            return Chunk(writer.core(put).rowcount, skipped=0, last=None)
        keys = self._next_keys(writer, number, after)
        put = self._update(writer, number).where(key_is_in(self.mapping, _KEYS, writer.database))
        rows = sum(
            writer.core(put, {_KEYS: key_values(batch)}).rowcount for batch in key_batches(keys)
        )
        more = self.chunk is not None and len(keys) == self.chunk
        return Chunk(rows, skipped=len(keys) - rows, last=keys[-1] if more else None)

    def _by_one_update(self, writer: Writer) -> bool:
        """Tell whether the criteria can stand in an UPDATE: it knows one table, and no hooks."""
        mapping = self.mapping
        return mapping.one_table and mapping.mapper.inherits is None and not writer.hooked

    def _next_keys(
        self, writer: Writer, number: int, after: tuple[Any, ...] | None
    ) -> list[tuple[Any, ...]]:
        mapping = self.mapping
        keys = mapping.key_attributes
        found = select(*keys).where(*self.where, _older(mapping.attribute("round"), number))
        if after is not None:
            found = found.where(*_follows(keys, after))
        found = by_key(found, mapping.table, writer.database).order_by(*keys).limit(self.chunk)
        return [tuple(key) for key in writer.orm(found)]

    def _update(self, writer: Writer, number: int) -> Any:
        """Make the UPDATE that puts rows into the round; claimed rows get a note to join it.

        It is one statement for both: between two statements a row may be claimed or
        finished.
        """
        mapping = self.mapping
        put = writer.database.update_by_key(mapping.table, mapping.keys)
        put = put.where(_older(mapping.column("round"), number))
        if not mapping.is_queue:
            return put.values(dict(put_in_round(mapping, number)))
        status = mapping.column("status")
        known = words_of(mapping, (UNCLAIMED, CLAIMED, *left_by("start_round")))
        # The round comes first and the status last: MySQL's assignments see the values that
        # the earlier ones wrote.
        return put.where(or_(*(status_is(status, word) for word in known))).ordered_values(
            *put_in_round(mapping, number).items()
        )


def round_event(mapping: QueueMapping, rows: int | None) -> Event:
    """Make the event of rows that were put into a round; nobody knows their keys."""
    return Event("after_change", "start_round", mapping.entity, count=rows)


def _older(round_: Any, number: int) -> ColumnElement[bool]:
    """Return the criterion that a row is in an older round, or will join an older round."""
    older: ColumnElement[bool] = round_.between(1 - number, number - 1)
    return older


def _follows(keys: Sequence[Any], after: tuple[Any, ...]) -> list[ColumnElement[bool]]:
    """Compare a primary key with another, so that its index bounds the read on every database."""
    behind = keys[-1] > after[-1]
    for key, value in reversed(list(zip(keys[:-1], after[:-1], strict=True))):
        behind = or_(key > value, and_(key == value, behind))
    return [keys[0] >= after[0], behind]


def _value_text(value: Any) -> str:
    """Write a value of the criteria; the values of IN sorted, since a set has any order."""
    return str(sorted(map(repr, value))) if isinstance(value, list | set | tuple) else repr(value)
