"""Ten schedulers on one table, killed at random: each tick becomes a job, or is told as missed."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess

import pytest
from sqlalchemy import Column, Engine, Integer, String, Table, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import is_transient
from sa_jobqueue.schedules import Missed, Ran
from tests.processes import FORKSERVER
from tests.support import make_engine, until

from .models import SCHEDULES, Base, Report, reports, ticks_of

SCHEDULERS = 10

#: How often a scheduler is killed: in CI size, and with --full.
KILLS = {False: 5, True: 300}

SECOND = timedelta(seconds=1)

#: How late the schedulers begin.
LATE = timedelta(minutes=3)

#: How long a scheduler that has found nothing waits, in seconds.
PAUSE = 0.02

#: The ticks that became no jobs: from `first` until before `until`, in ISO 8601.
GAPS = Table(
    "scheduled_gap",
    Base.metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(20), nullable=False),
    Column("first", String(40), nullable=False),
    Column("until", String(40), nullable=False),
)


def run_until_killed(url: str) -> None:
    """Run schedules that are due again and again, in a process of its own."""
    with Session(make_engine(url)) as session:
        while True:
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


def note_gaps(session: Session, ran: list[Ran]) -> None:
    """Write down in the same transaction which ticks were skipped."""
    for each in ran:
        if each.skipped is not None:
            end = each.ticks[0] if each.ticks else each.next_tick
            gap = {"first": each.skipped.isoformat(), "until": end.isoformat()}
            session.execute(insert(GAPS).values(name=each.name, **gap))


def started(engine: Engine) -> BaseProcess:
    """Start a scheduler."""
    url = engine.url.render_as_string(hide_password=False)
    process = FORKSERVER.Process(target=run_until_killed, args=(url,))
    process.start()
    return process


def seconds(first: datetime, end: datetime) -> list[datetime]:
    """Return the ticks from the first until before another."""
    return [first + number * SECOND for number in range((end - first) // SECOND)]


def skipped(session: Session, name: str) -> list[datetime]:
    """Return the ticks that the schedulers have reported as skipped."""
    rows = session.execute(select(GAPS.c.first, GAPS.c.until).where(GAPS.c.name == name))
    return [tick for gap in rows for tick in seconds(*map(datetime.fromisoformat, gap))]


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.timeout(600)
def test_each_tick_becomes_one_job_and_none_is_lost_unseen(
    engine: Engine, session: Session, full: bool
) -> None:
    dice = random.Random(17)
    for missed in Missed:
        values = {"title": missed}
        SCHEDULES.add(session, missed, Report, "* * * * * *", values=values, missed=missed)
    begin = SCHEDULES.all(session)[0].next_tick - LATE
    session.execute(update(SCHEDULES.entity).values(next_tick=begin, run_at=begin))
    session.commit()
    running = [started(engine) for _ in range(SCHEDULERS)]

    for _ in range(KILLS[full]):
        time.sleep(dice.uniform(0, 0.1))  # anywhere in a transaction
        number = dice.randrange(SCHEDULERS)
        running[number].kill()
        running[number].join()
        running[number] = started(engine)
    after = datetime.now(UTC)
    until(lambda: first_tick(session) > after, 60)
    assert all(process.is_alive() for process in running)
    for process in running:
        process.kill()
        process.join()

    for info in SCHEDULES.all(session):
        gone = skipped(session, info.name)
        wanted = seconds(begin, info.next_tick)
        assert Counter(ticks_of(session, info.name) + gone) == Counter(wanted)
        assert (info.name == "all") == (gone == [])


def first_tick(session: Session) -> datetime:
    """Return the first tick that nobody has handled, as the database has it now."""
    session.rollback()
    return min(info.next_tick for info in SCHEDULES.all(session))
