"""How a round is started: its number is taken, and rows are put in chunk by chunk.

A chunk is one UPDATE, of rows that a plain read has found along the primary key. What
keeps it exact:

* The number is the primary key of a row in the table of the rounds: two starters cannot
  take the same one, and the second waits until the first one's transaction has ended.
* A row is put in where its round is an older one. So none is put in twice, whatever was
  done before; none that a newer round has is taken back.
* With an Engine the row of the round says until the last chunk that it is not whole, and
  a lock of its own, which dies with the process, that somebody is at it. Not whole and
  nobody at it: broken off.
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
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..dialects.clock import utc_now
from ..model.keys import by_key, key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.round_table import round_table
from ..model.status import CLAIMED, UNCLAIMED, status_is
from ..model.transitions import left_by, put_in_round, words_of
from ..owners.named_lock import named_lock
from ..sessions.show import show_expired
from ..sessions.transactions import run_with_retries
from ..sessions.writer import Writer, writing

log = logging.getLogger("sa_jobqueue.rounds.rounds")

R = TypeVar("R")

_KEYS = "round_keys"
_SAVEPOINT = "sa_jobqueue_round"


@dataclass(frozen=True)
class RoundStart:
    """How far the start of a round is.

    Attributes:
        round: its number.
        rows: how many this call has put into it so far; of those that are claimed,
            it is noted that they join it.
        skipped: how many it has left alone: their status is one of a JobQueue's own, or
            they have been taken by a newer round meanwhile. One UPDATE of all counts none.
    """

    round: int
    rows: int
    skipped: int


@dataclass(frozen=True)
class Chunk:
    """What one UPDATE has done, and the key that it ended with; None: it was the last."""

    rows: int
    skipped: int
    last: tuple[Any, ...] | None


_NOTHING_LEFT = Chunk(rows=0, skipped=0, last=None)


@dataclass(frozen=True)
class Starting:
    """One call of start_round().

    Chunks go along the primary key, and a row is put in where its round is an older one.
    So a second pass passes over what the first has done, and what a newer round has.
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

    def within(self, writer: Writer) -> int:
        """Start a round in an open transaction."""
        writer.lock_writes(self.mapping.table)
        number = self._begin(writer, whole=True)
        self._overtake(writer)
        self._put_all(number, partial(self._put, writer, number))
        loaded = writer.session.identity_map.values()
        of_class = [entity for entity in loaded if isinstance(entity, self.mapping.entity)]
        show_expired(writer.session, self.mapping, of_class)
        return number

    def _overtake(self, writer: Writer) -> None:
        """Close the starts of the same criteria that were broken off: their rows are ours."""
        found = select(self.rounds.c.round).where(*self._broken_off(writer))
        for older in list(writer.core(found).scalars()):
            self._close(writer, older)

    # -- in transactions of our own -------------------------------------

    def committing(self, engine: Engine) -> int:
        """Start a round chunk by chunk, or go on with one that was broken off."""
        with named_lock(engine, f"sa_jobqueue rounds of {self.mapping.table.fullname}") as lock:
            number = self._run(engine, self._begin_or_go_on)

            def put(after: tuple[Any, ...] | None) -> Chunk:
                lock.check()
                return self._run(engine, lambda writer: self._put_if_open(writer, number, after))

            self._put_all(number, put)
        return number

    def _run(self, engine: Engine, work: Callable[[Writer], R]) -> R:
        def in_session(session: Session) -> R:
            with writing(session, self.mapping) as writer, writer.atomically():
                writer.lock_writes(self.mapping.table)
                return work(writer)

        return run_with_retries(engine, in_session)

    def _begin_or_go_on(self, writer: Writer) -> int:
        found = select(func.max(self.rounds.c.round)).where(*self._broken_off(writer))
        number: int | None = writer.core(found).scalar()
        if number is None:
            return self._begin(writer, whole=False)
        log.info("%s: goes on with round %d, whose start was broken off", self.mapping, number)
        return number

    def _put_if_open(self, writer: Writer, number: int, after: tuple[Any, ...] | None) -> Chunk:
        """Put in the next chunk, unless a start in a Session has overtaken us.

        The lock of the round's row also keeps us apart from the last statement of a
        killed starter, which the server may still be at.
        """
        rounds = self.rounds.c
        found = select(rounds.round).where(rounds.round == number, rounds.started_at.is_(None))
        if writer.core(found.with_for_update()).first() is None:
            return _NOTHING_LEFT
        chunk = self._put(writer, number, after)
        if chunk.last is None:
            self._close(writer, number)
        return chunk

    # -- the round's number ---------------------------------------------

    def _begin(self, writer: Writer, *, whole: bool) -> int:
        """Take the next number; a number that another transaction takes is waited for."""
        number = self._highest(writer) + 1
        while not self._write_down(writer, number, whole=whole):
            number += 1
        log.info("%s: starts round %d", self.mapping, number)
        return number

    def _highest(self, writer: Writer) -> int:
        highest: int | None = writer.core(select(func.max(self.rounds.c.round))).scalar()
        if highest is None:  # rounds of a time before this table
            column = self.mapping.column("round")
            highest = writer.core(select(func.max(func.abs(column)))).scalar()
        return highest or 0

    def _write_down(self, writer: Writer, number: int, *, whole: bool) -> bool:
        values = {"round": number, "criteria": self._digest(writer), "begun_at": utc_now()}
        if whole:
            values["started_at"] = utc_now()
        writer.connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        try:
            writer.core(insert(self.rounds).values(values))
        except IntegrityError:
            writer.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return False
        writer.connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return True

    def _broken_off(self, writer: Writer) -> list[ColumnElement[bool]]:
        rounds = self.rounds.c
        return [rounds.criteria == self._digest(writer), rounds.started_at.is_(None)]

    def _close(self, writer: Writer, number: int) -> None:
        closed = update(self.rounds).where(self.rounds.c.round == number)
        writer.core(closed.values(started_at=utc_now()))

    def _digest(self, writer: Writer) -> str:
        """Tell criteria apart, with their values, the same in each process."""
        compiled = and_(True, *self.where).compile(dialect=writer.connection.dialect)
        values = sorted((name, _said(value)) for name, value in compiled.params.items())
        said = f"{self.mapping} {compiled} {values}"
        return hashlib.sha256(said.encode()).hexdigest()

    # -- its rows -------------------------------------------------------

    def _put_all(self, number: int, put: Callable[[tuple[Any, ...] | None], Chunk]) -> None:
        """Put in chunk after chunk, and tell."""
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

    def _put(self, writer: Writer, number: int, after: tuple[Any, ...] | None) -> Chunk:
        if self.chunk is None and self._by_one_update(writer):
            put = self._putting(writer, number).where(*self.where)
            return Chunk(writer.core(put).rowcount, skipped=0, last=None)
        keys = self._next_keys(writer, number, after)
        put = self._putting(writer, number).where(key_is_in(self.mapping, _KEYS, writer.database))
        rows = sum(
            writer.core(put, {_KEYS: key_values(batch)}).rowcount for batch in key_batches(keys)
        )
        more = self.chunk is not None and len(keys) == self.chunk
        return Chunk(rows, skipped=len(keys) - rows, last=keys[-1] if more else None)

    def _by_one_update(self, writer: Writer) -> bool:
        """Tell whether the table alone knows which rows are meant."""
        mapping = self.mapping
        return mapping.one_table and mapping.mapper.inherits is None and not writer.hooked

    def _next_keys(
        self, writer: Writer, number: int, after: tuple[Any, ...] | None
    ) -> list[tuple[Any, ...]]:
        mapping = self.mapping
        keys = mapping.key_attributes
        found = select(*keys).where(*self.where, _older(mapping.attribute("round"), number))
        if after is not None:
            found = found.where(*_behind(keys, after))
        found = by_key(found, mapping.table, writer.database).order_by(*keys).limit(self.chunk)
        return [tuple(key) for key in writer.orm(found)]

    def _putting(self, writer: Writer, number: int) -> Any:
        """Return the UPDATE that puts rows into the round, or notes it where they are claimed.

        In one statement: between two, a row may be claimed, or finished.
        """
        mapping = self.mapping
        put = writer.database.update_by_key(mapping.table, mapping.keys)
        put = put.where(_older(mapping.column("round"), number))
        if not mapping.is_queue:
            return put.values(dict(put_in_round(mapping, number)))
        status = mapping.column("status")
        known = words_of(mapping, (UNCLAIMED, CLAIMED, *left_by("start_round")))
        # The round first and the status last: MySQL's assignments see what those before
        # them wrote.
        return put.where(or_(*(status_is(status, word) for word in known))).ordered_values(
            *put_in_round(mapping, number).items()
        )


def _older(round_: Any, number: int) -> ColumnElement[bool]:
    """Return the criterion that a row is in an older round, or joins an older one."""
    older: ColumnElement[bool] = round_.between(1 - number, number - 1)
    return older


def _behind(keys: Sequence[Any], after: tuple[Any, ...]) -> list[ColumnElement[bool]]:
    """Compare a primary key with another, so that its index bounds the read on every engine."""
    behind = keys[-1] > after[-1]
    for key, value in reversed(list(zip(keys[:-1], after[:-1], strict=True))):
        behind = or_(key > value, and_(key == value, behind))
    return [keys[0] >= after[0], behind]


def _said(value: Any) -> str:
    """Say a value of the criteria; that of IN in an order that is the same in each process."""
    return str(sorted(map(repr, value))) if isinstance(value, list | set | tuple) else repr(value)
