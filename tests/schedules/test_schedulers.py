"""Ten schedulers on one table, killed at random, while the database's clock is stepped."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue.dialects.clock import as_utc
from sa_jobqueue.schedules.ticks import Cron
from tests.evidence.checker import check_files
from tests.processes import FORKSERVER

from .models import SCHEDULES, reports, ticks_of
from .stepped_clock import CLOCK, step_clock, stepped_now
from .storm import GAPS, run_until_killed

SCHEDULERS = 10

#: How often the clock is stepped and a scheduler killed: in CI size, and with --full.
STEPS = {False: 5, True: 300}

#: In minutes. They go forward in the mean; an hour comes both ways.
JUMPS = (60, -60, 7, -7, 90, 0, 24 * 60)

CRONS = {
    "all": Cron("*/7 * * * *", "Europe/Berlin"),
    "once": Cron("0,30 1-3 * * *", "Europe/Berlin"),
    "skip": Cron("*/15 * * * *"),
}


class Storm:
    """The schedulers, and the clock of their database."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.paths = [folder / f"{number}.jsonl" for number in range(3)]
        self.end = folder / "end"
        self.dice = random.Random(17)
        self.running = [self._start(number) for number in range(SCHEDULERS)]

    def _start(self, number: int) -> Any:
        url = self.engine.url.render_as_string(hide_password=False)
        path = str(self.paths[number % len(self.paths)])
        process = FORKSERVER.Process(target=run_until_killed, args=(url, path, str(self.end)))
        process.start()
        return process

    def rage(self, steps: int) -> None:
        """Step the clock and kill a scheduler, again and again."""
        for _ in range(steps):
            self.step(timedelta(minutes=self.dice.choice(JUMPS)))
            time.sleep(self.dice.uniform(0, 0.1))  # anywhere in a transaction
            number = self.dice.randrange(SCHEDULERS)
            self.running[number].kill()
            self.running[number].join()
            self.running[number] = self._start(number)

    def step(self, by: timedelta) -> None:
        with self.engine.connect() as connection:
            step_clock(connection, by)

    def calm_down(self) -> None:
        """Let the schedulers handle all ticks until a last time, and end."""
        self.step(timedelta(days=2))
        deadline = time.monotonic() + 60
        while self._behind():
            assert time.monotonic() < deadline, "ticks are due, and nobody takes them"
            time.sleep(0.05)
        self.end.touch()
        for process in self.running:
            process.join()

    def _behind(self) -> bool:
        with self.engine.connect() as connection, Session(connection) as session:
            first = session.scalar(select(func.min(SCHEDULES.entity.next_tick)))
            assert first is not None
            return as_utc(first) <= stepped_now(connection)


@pytest.fixture
def starts(engine: Engine) -> dict[str, datetime]:
    """Make a schedule for each way with missed ticks; return their first ticks."""
    with Session(engine) as session, session.begin():
        session.execute(insert(CLOCK).values(id=1, step=0))
        for missed, cron in CRONS.items():
            SCHEDULES.add(
                session,
                missed,
                reports(),
                cron.expression,
                timezone=cron.timezone,
                values={"title": missed},
                missed=missed,
            )
        return {info.name: info.next_tick for info in SCHEDULES.all(session)}


def grid(cron: Cron, begin: datetime, end: datetime) -> list[datetime]:
    """Return the ticks from the first until before another."""
    return [begin, *takewhile(lambda tick: tick < end, cron.all_after(begin))]


def skipped(session: Session, name: str, ticks: list[datetime]) -> list[datetime]:
    """Return the ticks that the schedulers have reported as skipped."""
    rows = session.execute(select(GAPS).where(GAPS.c.name == name))
    gaps = [(as_utc(row.first), as_utc(row.until)) for row in rows]
    return [tick for first, until in gaps for tick in ticks if first <= tick < until]


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.timeout(600)
def test_each_tick_becomes_one_job_and_none_is_lost_unseen(
    engine: Engine, starts: dict[str, datetime], tmp_path: Path, full: bool
) -> None:
    storm = Storm(engine, tmp_path)

    storm.rage(STEPS[full])
    storm.calm_down()

    assert {process.exitcode for process in storm.running} == {0}
    with Session(engine) as session:
        for info in SCHEDULES.all(session):
            ticks = grid(CRONS[info.name], starts[info.name], info.next_tick)
            gone = skipped(session, info.name, ticks)
            assert Counter(ticks_of(session, info.name) + gone) == Counter(ticks)
            assert (info.name == "all") == (gone == [])
    # The rule "clock" finds that the clock was set back, as it was.
    faults = [fault for fault in check_files(*storm.paths) if fault.rule != "clock"]
    assert not faults, "\n".join(line for fault in faults[:3] for line in fault.story())
