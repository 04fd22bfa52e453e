"""The proof: every inserted row was finished once, and no row is left.

It reads the logs that producers and consumers wrote to the database, each in the
transaction that did the work. It uses no counter of a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ...model.mapping import mapping_of
from ...model.status import DONE
from .model import Finished, Inserted, Record


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the logs and the table show.

    Attributes:
        inserted: rows that were inserted.
        finished: finishes; a row that was finished twice counts twice.
        twice: rows that were finished more than once.
        unfinished: inserted rows that were not finished.
        unknown: finished rows that were not inserted.
        left: rows in the table that are not done.
    """

    inserted: int
    finished: int
    twice: int
    unfinished: int
    unknown: int
    left: int

    @property
    def holds(self) -> bool:
        """Whether rows were inserted, and each was finished once."""
        wrong = self.twice or self.unfinished or self.unknown or self.left
        return self.inserted > 0 and self.inserted == self.finished and not wrong


def prove(session: Session) -> Proof:
    """Compare the two logs with the table, when all processes have ended."""
    return Proof(
        inserted=session.scalars(select(func.count(Inserted.id))).one(),
        finished=session.scalars(select(func.count(Finished.id))).one(),
        twice=_count_twice(session),
        unfinished=_count_missing(session, Inserted, Finished),
        unknown=_count_missing(session, Finished, Inserted),
        left=_count_left(session),
    )


def _count_twice(session: Session) -> int:
    twice = (
        select(Finished.record_id).group_by(Finished.record_id).having(func.count() > 1).subquery()
    )
    return session.scalars(select(func.count()).select_from(twice)).one()


def _count_missing(
    session: Session, log: type[Inserted | Finished], other: type[Inserted | Finished]
) -> int:
    known = select(other.record_id)
    return session.scalars(
        select(func.count(log.record_id.distinct())).where(log.record_id.not_in(known))
    ).one()


def _count_left(session: Session) -> int:
    mapping = mapping_of(Record)
    done = mapping.has_status(mapping.word(DONE))
    return session.scalars(select(func.count(Record.id)).where(~done)).one()
