"""Which ticks of a schedule are due, and what becomes of those that were missed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile

from .cron import Cron

#: A tick that is later than this is missed, where missed ticks are skipped.
LATE = timedelta(minutes=1)

#: The most ticks for one transaction, where missed ticks are all made up for.
MOST = 100


class Missed(StrEnum):
    """What becomes of ticks while no scheduler ran, or the schedule was paused.

    SKIP: they are skipped. A tick is missed when it is more than a minute late.
    ONCE: one job is inserted, with the last of them.
    ALL: a job is inserted for each, at most 100 in a transaction.
    """

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@dataclass(frozen=True)
class Due:
    """What a schedule has to do now.

    Attributes:
        ticks: those that become jobs.
        skipped: the first tick that becomes none; None: each tick is among `ticks`.
        next: the tick that comes then; it may be due, too.
    """

    ticks: tuple[datetime, ...]
    skipped: datetime | None
    next: datetime


def due_ticks(cron: Cron, tick: datetime, now: datetime, missed: Missed) -> Due:
    """Return what a schedule has to do now, by the database's clock.

    Args:
        tick: the next tick that was not handled. The ticks after it are computed from it, so
            none comes twice when the clock is set back.

    Raises:
        ArgumentError: the expression is not valid on this machine.
    """
    if tick > now:
        return Due((), None, tick)
    ticks = _ticks(cron, tick, now, missed)
    first_kept = ticks[0] if ticks else None
    if missed is Missed.ALL:
        return Due(ticks, None, cron.after(ticks[-1]))
    return Due(ticks, None if first_kept == tick else tick, cron.after(now))


def _ticks(cron: Cron, tick: datetime, now: datetime, missed: Missed) -> tuple[datetime, ...]:
    if missed is Missed.ONCE:
        return (cron.latest(tick, now),)
    begin, most = (now - LATE, None) if missed is Missed.SKIP else (tick, MOST - 1)
    first = [tick] if tick >= begin else []
    later = takewhile(lambda found: found <= now, cron.all_after(max(tick, begin)))
    return (*first, *islice(later, most))
