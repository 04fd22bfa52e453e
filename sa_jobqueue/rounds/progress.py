"""round_progress(): how far a round is, by what has become of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, false, func, literal_column, or_, select

from ..model.columns import round_table
from ..model.mapping import QueueMapping, any_mapping_of
from ..model.transitions import FINISHED
from ..sessions.writer import AnySession, writing

COUNTED = ("unclaimed", "claimed", "joining", *map(str, FINISHED))


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
        counted = writer.orm(_count(mapping, round_)).one()
    return RoundProgress(round_, started is not None, **counted._mapping)


def _count(mapping: QueueMapping, number: int) -> Any:
    """Count the rows in one statement, so that none is counted twice.

    Minus the number says that a claimed row joins the round when its claim ends; and of a
    class without JobMixin, that the round is done with the row.
    """
    round_ = mapping.attribute("round")
    here, minus = round_ == number, and_(round_ == -number, round_ < 0)
    which: dict[str, ColumnElement[bool]] = dict.fromkeys(COUNTED, false())
    if mapping.is_queue:
        claimed = mapping.has_status(*mapping.during)
        which |= {word: and_(here, mapping.has_status(mapping.word(word))) for word in FINISHED}
        which["unclaimed"] = and_(here, mapping.has_status(*mapping.ready))
        which["claimed"], which["joining"] = and_(here, claimed), and_(minus, claimed)
    else:
        which["unclaimed"], which["done"] = here, minus
    counted: Any = literal_column("1")
    counts = (func.count(case((is_so, counted))).label(str(name)) for name, is_so in which.items())
    return select(*counts).where(or_(here, minus))
