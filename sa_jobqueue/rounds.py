"""Rounds: the same rows again and again, such as a mailing to the same subscribers.

::

    class Subscriber(JobMixin, RoundMixin, Base): ...

    number = start_round(engine, Subscriber, Subscriber.confirmed)

    mails = JobQueue(Subscriber, Subscriber.round == number)       # or any round: the oldest first
    claimed = mails.claim(session, owner=owner, limit=100)

    round_progress(session, Subscriber)          # 12,000 of 100,000 are done

A round is a number that rows have. A chunk is one read of keys along the primary key, and
one UPDATE of these rows. Why every row is put in exactly once:

* The number is the primary key of a row in the table of the rounds. So two starts cannot
  take the same number: the second waits until the first one's transaction has ended.
* A row is put in where its round is older. So no row is put in twice, however often the
  chunks are repeated, and no row leaves a newer round.
* With an Engine, ``started_at`` of the round is NULL until its last chunk, and the start
  holds a named lock, which dies with its process. If ``started_at`` is NULL and nobody holds
  the lock, the start was interrupted.

Limits: a row is in one round at a time, the newest that took it. Rows whose status is a
JobQueue's own, which the class does not declare, are left alone. See docs/schedules.md#rounds.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Engine, Table, and_, case, func, or_, select
from sqlalchemy.orm import Session

from .databases import is_integrity_error
from .databases.clock import utc_now
from .errors import ArgumentError
from .events.event import Event
from .events.notes import note, note_claimable, tell
from .model.columns import round_table
from .model.keys import beyond, by_key, key_batches, key_is_in, key_values
from .model.mapping import QueueMapping, any_mapping_of
from .model.status import CLAIMED, UNCLAIMED, status_is
from .model.transitions import FINISHED, left_by, put_in_round, words_of
from .owners.named_lock import named_lock
from .sessions.show import show_expired
from .sessions.transactions import run_with_retries
from .sessions.writer import AnySession, Writer, writing

__all__ = ["RoundProgress", "round_progress", "start_round"]

log = logging.getLogger("sa_jobqueue.rounds")

#: How many rows one UPDATE, and with an Engine one transaction, puts into a round.
CHUNK = 10_000

#: A primary key; the empty key comes before all others.
Key: TypeAlias = tuple[Any, ...]

_KEYS = "sa_jobqueue_keys"


def start_round(
    session_or_engine: AnySession | Engine,
    entity: type[Any],
    *where: ColumnElement[bool],
    chunk: int = CHUNK,
) -> int:
    """Make rows claimable once more, in the next round; return its number.

    Unclaimed and finished rows become unclaimed, without an owner, with 0 attempts.
    Claimed rows only get a note: whatever ends the claim leaves them unclaimed in the new
    round. Readers are not blocked, and claimers pass over the rows of a chunk until its
    commit.

    Args:
        session_or_engine: with a Session, the whole start is in the caller's transaction,
            nothing is committed, and the round is always new. With an Engine, each
            chunk is committed, and its rows can be claimed at once. The next call with the
            same criteria finishes an interrupted start. Two calls with an Engine go one
            after the other.
        entity: a mapped class with RoundMixin.
        where: criteria, joined by AND; each row is compared once.
        chunk: how many rows one UPDATE takes.

    Raises:
        ArgumentError: a class without RoundMixin, a chunk below 1, or criteria that join
            other tables.
        LockLost: with an Engine, the lock that keeps others from starting was lost: call
            start_round() again.
        UnsupportedDatabase: with an Engine, there is no named lock, as through a pooler.
        DBAPIError: the database's own error; see :func:`is_transient`.
    """
    mapping = any_mapping_of(entity)
    rounds = round_table(mapping)
    mapping.refuse_other_tables(where)
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ArgumentError(f"chunk is the number of rows for one UPDATE, at least 1: {chunk!r}")
    start = _Start(mapping, rounds, where, chunk)
    if isinstance(session_or_engine, Engine):
        return start.in_own_transactions(session_or_engine)
    with writing(session_or_engine, mapping) as writer:
        with writer.atomically():
            number = start.in_transaction(writer)
        if mapping.listeners:
            note(writer, mapping, Event("after_change", "start_round", mapping.entity))
        mapping.head.changes += 1
        if mapping.wakes:
            note_claimable(writer, mapping)
    return number


@dataclass(frozen=True)
class _Start:
    """One call of start_round(); `rounds` is the table of the rounds."""

    mapping: QueueMapping
    rounds: Table
    where: Sequence[ColumnElement[bool]]
    chunk: int

    def in_transaction(self, writer: Writer) -> int:
        """Start a round in the caller's transaction; return its number."""
        writer.lock_writes(self.mapping.table)
        number = self._take_number(writer, resume=False)
        # Our round takes the rows of unfinished starts. One that is still under way then ends.
        self._mark_started(writer, *self._is_unfinished(writer))
        after: Key | None = ()
        while after is not None:
            _, after = self._put_chunk(writer, number, after)
        loaded = writer.session.identity_map.values()
        of_class = [entity for entity in loaded if isinstance(entity, self.mapping.entity)]
        show_expired(writer.session, self.mapping, of_class)
        return number

    def in_own_transactions(self, engine: Engine) -> int:
        """Start a round and commit each chunk, or finish an interrupted start."""
        with named_lock(engine, f"sa_jobqueue rounds of {self.mapping.table.fullname}") as lock:
            run = partial(self._run, engine)
            number: int = run(partial(self._take_number, resume=True))
            after: Key | None = ()
            while after is not None:
                lock.check()
                rows, after = run(partial(self._put_if_open, number=number, after=after))
                log.debug("%s: %d more rows are in round %d", self.mapping, rows, number)
                if self.mapping.listeners and rows:
                    event = Event("after_change", "start_round", self.mapping.entity, count=rows)
                    tell(self.mapping, event)
        return number

    def _run(self, engine: Engine, work: Callable[[Writer], Any]) -> Any:
        def in_session(session: Session) -> Any:
            with writing(session, self.mapping) as writer, writer.atomically():
                writer.lock_writes(self.mapping.table)
                return work(writer)

        return run_with_retries(engine, in_session)

    # -- the number -----------------------------------------------------

    def _take_number(self, writer: Writer, *, resume: bool) -> int:
        """Take the next number, or that of an interrupted start.

        It waits for a transaction that is taking the same number.
        """
        newest = select(func.max(self.rounds.c.round))
        found = writer.core(newest.where(*self._is_unfinished(writer))).scalar() if resume else None
        if found is not None:
            log.info("%s: resuming round %d, whose start was interrupted", self.mapping, found)
            return int(found)
        number: int = writer.core(newest).scalar() or 0
        taken = self.rounds.insert().values(
            criteria=self._digest(writer),
            begun_at=utc_now(),
            started_at=None if resume else utc_now(),
        )
        while True:
            number += 1
            try:
                with writer.connection.begin_nested():
                    writer.core(taken.values(round=number))
            except Exception as error:  # a handle_error listener may raise what it likes
                if not is_integrity_error(error):
                    raise
                continue
            log.info("%s: starting round %d", self.mapping, number)
            return number

    def _is_unfinished(self, writer: Writer) -> list[ColumnElement[bool]]:
        rounds = self.rounds.c
        return [rounds.criteria == self._digest(writer), rounds.started_at.is_(None)]

    def _mark_started(self, writer: Writer, *which: ColumnElement[bool]) -> None:
        writer.core(self.rounds.update().where(*which).values(started_at=utc_now()))

    def _digest(self, writer: Writer) -> str:
        """Hash the criteria with their values; the hash is the same in each process."""
        compiled = and_(True, *self.where).compile(dialect=writer.connection.dialect)
        values = sorted((name, _value_text(value)) for name, value in compiled.params.items())
        return hashlib.sha256(f"{self.mapping} {compiled} {values}".encode()).hexdigest()

    # -- its rows -------------------------------------------------------

    def _put_if_open(self, writer: Writer, number: int, after: Key) -> tuple[int, Key | None]:
        """Put in the next chunk, unless a start in a Session has ended ours.

        The lock of the round's row also makes us wait for the last statement of a killed
        start, which the server may still be running.
        """
        rounds = self.rounds.c
        found = select(rounds.round).where(rounds.round == number, rounds.started_at.is_(None))
        if writer.core(found.with_for_update()).first() is None:
            return 0, None
        rows, last = self._put_chunk(writer, number, after)
        self.mapping.head.changes += 1
        if self.mapping.wakes and rows:
            note_claimable(writer, self.mapping)
        if last is None:
            self._mark_started(writer, rounds.round == number)
        return rows, last

    def _put_chunk(self, writer: Writer, number: int, after: Key) -> tuple[int, Key | None]:
        """Put in the next chunk; return how many rows, and its last key or None at the end."""
        mapping, keys = self.mapping, self.mapping.key_attributes
        behind = beyond(keys, after, writer.database) if after else []
        older = mapping.attribute("round").between(1 - number, number - 1)
        found = select(*keys).where(*self.where, older, *behind)
        found = by_key(found, mapping.table, writer.database).order_by(*keys).limit(self.chunk)
        taken = [tuple(key) for key in writer.orm(found)]
        # One statement puts unclaimed rows in, and notes for claimed ones that they join: between
        # two statements a row may be claimed or finished.
        put = writer.database.update_by_key(mapping.table, mapping.keys).where(
            mapping.column("round").between(1 - number, number - 1),
            key_is_in(mapping, _KEYS, writer.database),
        )
        if mapping.is_queue:
            known = words_of(mapping, (UNCLAIMED, CLAIMED, *left_by("start_round")))
            status = mapping.column("status")
            put = put.where(or_(*(status_is(status, word) for word in known)))
        # The round comes first and the status last: MySQL's assignments see the values that
        # the earlier ones wrote.
        put = put.ordered_values(*put_in_round(mapping, number).items())
        batches = map(key_values, key_batches(taken))
        with mapping.counting(writer, taken):
            rows = sum(writer.core(put, {_KEYS: batch}).rowcount for batch in batches)
        if left := len(taken) - rows:
            log.warning("%s: %d rows were left out of round %d", mapping, left, number)
        return rows, taken[-1] if len(taken) == self.chunk else None


def _value_text(value: Any) -> str:
    """Write a value of the criteria; the values of IN sorted, since a set has any order."""
    return str(sorted(map(repr, value))) if isinstance(value, list | set | tuple) else repr(value)


@dataclass(frozen=True)
class RoundProgress:
    """How far a round is.

    Attributes:
        round: its number; 0 counts the rows that are in no round.
        started: whether all of its rows have been put in; False while start_round() runs,
            and after it was interrupted.
        unclaimed: how many of its rows are unclaimed, or in a further ``ready`` status.
        claimed: how many of its rows are claimed, or in a further ``during`` status.
        joining: how many rows are still claimed from before, and join the round when that
            claim ends.
        done: how many of its rows are done.
        failed: how many of its rows are failed.
        cancelled: how many of its rows are cancelled.
    """

    round: int
    started: bool
    unclaimed: int
    claimed: int = 0
    joining: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def finished(self) -> int:
        """How many rows are done, failed or cancelled."""
        return sum(getattr(self, status) for status in FINISHED)

    @property
    def total(self) -> int:
        """How many rows the round has."""
        return self.unclaimed + self.claimed + self.joining + self.finished


def round_progress(
    session: AnySession, entity: type[Any], number: int | None = None
) -> RoundProgress:
    """Count the rows of a round by what has become of them, in one read of the table.

    Args:
        session: the caller's session.
        entity: a mapped class with RoundMixin.
        number: the number of the round; None for the newest round.

    Raises:
        ArgumentError: a class without RoundMixin.
    """
    mapping = any_mapping_of(entity)
    rounds = round_table(mapping).c
    with writing(session, mapping, reads=True) as writer:
        newest = select(func.max(rounds.round))
        round_: int = (writer.core(newest).scalar() or 0) if number is None else number
        started = writer.core(select(rounds.started_at).where(rounds.round == round_)).scalar()
        # Minus the number says that a claimed row joins the round when its claim ends; and of a
        # class without JobMixin, that the round is done with the row.
        column = mapping.attribute("round")
        here, minus = column == round_, and_(column == -round_, column < 0)
        which: dict[str, Any] = {"unclaimed": here, "done": minus}
        if mapping.is_queue:
            claimed = mapping.has_status(*mapping.during)
            which = {word: and_(here, mapping.has_status(mapping.word(word))) for word in FINISHED}
            which["unclaimed"] = and_(here, mapping.has_status(*mapping.ready))
            which["claimed"], which["joining"] = and_(here, claimed), and_(minus, claimed)
        counts = (func.count(case((is_so, 1))).label(str(word)) for word, is_so in which.items())
        counted = writer.orm(select(*counts).where(or_(here, minus))).one()
    return RoundProgress(round_, started is not None, **counted._mapping)
