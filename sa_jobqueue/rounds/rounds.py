"""Rounds: the same rows again and again, such as a mailing to the same subscribers.

::

    class Subscriber(JobMixin, RoundMixin, Base): ...

    number = start_round(engine, Subscriber, Subscriber.confirmed)

    mails = JobQueue(Subscriber, Subscriber.round == number)       # or any round: the oldest first
    claimed = mails.claim(session, owner=owner, limit=100)

    round_progress(session, Subscriber)          # 12,000 of 100,000 are done

A round is a number that rows have. To start one makes them claimable once more; those
that somebody has claimed join it when that claim ends. With an Engine each chunk commits,
and a start that was killed is finished by the next call with the same criteria. See
docs/rounds.md.

Limits: a row is in one round at a time, the newest that took it. Statuses of a
JobQueue's own that the class does not declare are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    case,
    func,
    literal_column,
    select,
)

from ..errors import ArgumentError
from ..model.mapping import QueueMapping, any_mapping_of
from ..model.round_table import round_table
from ..model.status import JobStatus, status_is
from ..model.transitions import FINISHED, words_of
from ..sessions.writer import AnySession, writing
from .start import RoundStart, Starting

#: How many rows one UPDATE, and with an Engine one transaction, puts into a round.
CHUNK = 10_000


@dataclass(frozen=True)
class RoundProgress:
    """How far a round is.

    Attributes:
        round: its number; 0 counts the rows that are in no round.
        started: whether all of its rows have been put in; False while start_round() is
            at it, and where it was broken off.
        unclaimed, claimed, done, failed, cancelled: how many of its rows are so; with
            further statuses in ``__queue_args__``, in whichever of them.
        joining: how many are still claimed from before, and join it when that claim ends.
    """

    round: int
    started: bool
    unclaimed: int
    claimed: int
    joining: int
    done: int
    failed: int
    cancelled: int

    @property
    def finished(self) -> int:
        """How many are done, failed or cancelled."""
        return sum(getattr(self, status) for status in FINISHED)

    @property
    def total(self) -> int:
        """How many rows the round has."""
        return self.unclaimed + self.claimed + self.joining + self.finished


def start_round(
    session_or_engine: AnySession | Engine,
    entity: type[Any],
    *where: ColumnElement[bool],
    chunk: int | None = CHUNK,
    on_progress: Callable[[RoundStart], object] | None = None,
) -> int:
    """Make rows claimable once more, in the next round; return its number.

    Rows that are unclaimed or finished are unclaimed then, without an owner, their
    attempts at 0. Claimed ones are not touched but for a note: whatever ends the claim
    leaves them unclaimed in the new round. Readers are not blocked, and claimers pass over
    the rows of a chunk until its commit.

    Args:
        session_or_engine: a Session: the whole start is in the caller's transaction,
            nothing is committed, and it is a new round always. Or an Engine: each chunk is
            committed, its rows can be claimed at once, and a start that was broken off is
            finished by the next call with the same criteria; two calls with an Engine go
            one after the other.
        entity: a mapped class with RoundMixin.
        where: criteria, joined by AND; each row is asked once.
        chunk: how many rows one UPDATE takes; None takes all of them in one.
        on_progress: called after each chunk; with an Engine, after its commit.

    Raises:
        ArgumentError: a class without RoundMixin, a chunk below 1, or criteria that join
            other tables.
        LockLost: with an Engine, the lock that keeps others from starting was lost: call
            it again.
        UnsupportedDatabase: with an Engine, there is no such lock, as through a pooler.
        DBAPIError: what the engine says; see :func:`is_transient`.
    """
    mapping = _with_rounds(entity)
    mapping.refuse_other_tables(where)
    starting = Starting(mapping, where, _checked_chunk(chunk), on_progress)
    if isinstance(session_or_engine, Engine):
        return starting.committing(session_or_engine)
    with writing(session_or_engine, starting.mapping) as writer, writer.atomically():
        return starting.within(writer)


def round_progress(
    session: AnySession, entity: type[Any], number: int | None = None
) -> RoundProgress:
    """Count the rows of a round by what has become of them.

    On PostgreSQL and SQLite those that wait or are claimed are found by the claim and the
    reap index, the finished ones in the table. MySQL and MariaDB may read an index or the
    table for all of them.

    Args:
        session: the caller's.
        entity: a mapped class with RoundMixin.
        number: that of the round; None is the newest.

    Raises:
        ArgumentError: a class without RoundMixin.
    """
    mapping = _with_rounds(entity)
    rounds = round_table(mapping)
    with writing(session, mapping) as writer:
        newest = select(func.max(rounds.c.round))
        round_: int = (writer.core(newest).scalar() or 0) if number is None else number
        started = writer.core(select(rounds.c.started_at).where(rounds.c.round == round_)).scalar()
        count = _count_jobs if mapping.is_queue else _count_rows
        counted = writer.orm(count(mapping, round_)).one()
    counts = {name: int(value or 0) for name, value in counted._mapping.items()}
    return RoundProgress(round_, started is not None, **counts)


def _with_rounds(entity: Any) -> QueueMapping:
    mapping = any_mapping_of(entity)
    round_table(mapping)  # refuses a class without rounds
    if mapping.column("round").table is not mapping.table:
        raise ArgumentError(
            f"the round of {mapping} is in another table than its status: put RoundMixin where "
            "JobMixin is"
        )
    return mapping


def _checked_chunk(chunk: int | None) -> int | None:
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise ArgumentError(f"chunk is the number of rows for one UPDATE, at least 1: {chunk!r}")
    return chunk


# -- counting ---------------------------------------------------------------


def _count_jobs(mapping: QueueMapping, number: int) -> Any:
    """Count the jobs of a round by status: in one statement, so that none is counted twice."""
    status, round_ = mapping.attribute("status"), mapping.attribute("round")
    in_round = round_ == number

    def counted(*criteria: ColumnElement[bool]) -> Any:
        counting = select(func.count(mapping.key_attributes[0])).where(*criteria)
        return counting.correlate(None).scalar_subquery()

    def of(word: JobStatus) -> Any:
        is_so = status_is(status, mapping.word(word))
        return func.sum(case((is_so, literal_column("1")), else_=literal_column("0")))

    unclaimed, claimed = mapping.has_status(*mapping.ready), mapping.has_status(*mapping.during)
    finished = words_of(mapping, FINISHED)
    joining = round_ == -number if number else literal_column("1") == literal_column("0")
    return select(
        counted(unclaimed, in_round).label("unclaimed"),
        counted(claimed, in_round).label("claimed"),
        counted(claimed, joining).label("joining"),
        *(of(status).label(str(status)) for status in FINISHED),
    ).where(mapping.has_status(*finished), in_round)


def _count_rows(mapping: QueueMapping, number: int) -> Any:
    """Count the rows of a class without JobMixin: still before a round, or done by it."""
    round_ = mapping.attribute("round")

    def counted(wanted: int) -> Any:
        counting = select(func.count(mapping.key_attributes[0])).where(round_ == wanted)
        return counting.correlate(None).scalar_subquery()

    none: Any = literal_column("0")
    return select(
        counted(number).label("unclaimed"),
        none.label("claimed"),
        none.label("joining"),
        (counted(-number) if number else none).label("done"),
        none.label("failed"),
        none.label("cancelled"),
    )
