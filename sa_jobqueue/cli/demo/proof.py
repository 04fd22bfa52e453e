"""The proof: every inserted row was finished, once, and none is left.

It reads what producers and consumers logged in the database, each in the
transaction that did the work, and believes nobody's own counters.
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
    """What the database says.

    Attributes:
        inserted: rows that were inserted.
        finished: finishes, each time that a row was finished.
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
        """Whether something was inserted, and each row of it finished once."""
        wrong = self.twice or self.unfinished or self.unknown or self.left
        return self.inserted > 0 and self.inserted == self.finished and not wrong


def prove(session: Session) -> Proof:
    """Compare the two logs and the table; nobody works on them any more."""
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
    session: Session, here: type[Inserted | Finished], there: type[Inserted | Finished]
) -> int:
    known = select(there.record_id)
    return session.scalars(
        select(func.count(here.record_id.distinct())).where(here.record_id.not_in(known))
    ).one()


def _count_left(session: Session) -> int:
    mapping = mapping_of(Record)
    done = mapping.has_status(mapping.word(DONE))
    return session.scalars(select(func.count(Record.id)).where(~done)).one()
