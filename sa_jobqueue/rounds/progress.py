"""round_progress(): how far a round is, by what has become of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal_column, select

from ..model.mapping import QueueMapping
from ..model.round_table import round_table
from ..model.status import JobStatus, status_is
from ..model.transitions import FINISHED, words_of
from ..sessions.writer import AnySession, writing
from .start import mapping_with_rounds


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
    claimed: int
    joining: int
    done: int
    failed: int
    cancelled: int

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
    """Count the rows of a round by what has become of them.

    On PostgreSQL and SQLite the claim index finds the unclaimed rows, and the reap index
    the claimed rows; the finished rows are counted in the table. MySQL and MariaDB may
    read an index or the table for all of them.

    Args:
        session: the caller's session.
        entity: a mapped class with RoundMixin.
        number: the number of the round; None for the newest round.

    Raises:
        ArgumentError: a class without RoundMixin.
    """
    mapping = mapping_with_rounds(entity)
    rounds = round_table(mapping)
    with writing(session, mapping, reads=True) as writer:
        newest = select(func.max(rounds.c.round))
        round_: int = (writer.core(newest).scalar() or 0) if number is None else number
        started = writer.core(select(rounds.c.started_at).where(rounds.c.round == round_)).scalar()
        count = _count_jobs if mapping.is_queue else _count_rows
        counted = writer.orm(count(mapping, round_)).one()
    counts = {name: int(value or 0) for name, value in counted._mapping.items()}
    return RoundProgress(round_, started is not None, **counts)


def _count_jobs(mapping: QueueMapping, number: int) -> Any:
    """Count the jobs of a round by status, in one statement, so that none is counted twice."""
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
    """Count the rows of a class without JobMixin: still in the round, or done in it."""
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
