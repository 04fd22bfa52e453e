"""A scheduler that runs until it is killed, and records what it does."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import Column, Integer, String, Table, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import is_transient
from sa_jobqueue.model.columns import timestamp_type
from sa_jobqueue.schedules import Ran
from tests.evidence.ledger import Ledger
from tests.support import make_engine

from .models import SCHEDULES, Base, Report, reports
from .stepped_clock import use_stepped_clock

#: The ticks that became no jobs: from `first` until before `until`.
GAPS = Table(
    "scheduled_gap",
    Base.metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(20), nullable=False),
    Column("first", timestamp_type(), nullable=False),
    Column("until", timestamp_type(), nullable=False),
)

#: How long a scheduler that has found nothing waits, in seconds.
PAUSE = 0.02


def run_until_killed(url: str, path: str, end: str) -> None:
    """Run schedules that are due again and again, until the file `end` is there."""
    use_stepped_clock()
    engine = make_engine(url)
    with Ledger(path).listen(SCHEDULES.entity, Report), Session(engine) as session:
        while not Path(end).exists():
            try:
                ran = SCHEDULES.run_due(session, [reports()], limit=2)
                note_gaps(session, ran)
                session.commit()
            except DBAPIError as error:
                session.rollback()
                if not is_transient(error):
                    raise
            else:
                time.sleep(0 if ran else PAUSE)
    engine.dispose()


def note_gaps(session: Session, ran: list[Ran]) -> None:
    """Write down in the same transaction which ticks were skipped."""
    for each in ran:
        if each.skipped is not None:
            until = each.ticks[0] if each.ticks else each.next_tick
            gap = {"name": each.name, "first": each.skipped, "until": until}
            session.execute(insert(GAPS).values(gap))
