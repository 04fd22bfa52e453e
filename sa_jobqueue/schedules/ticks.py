"""Find the ticks of a schedule that are due, and decide what becomes of missed ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile

from .cron import Cron

#: A tick that is later than this is missed, where missed ticks are skipped.
LATE = timedelta(minutes=1)

#: When a schedule whose jobs could not be inserted is tried again.
TRY_AGAIN = timedelta(minutes=1)

#: The most ticks for one transaction, if all missed ticks make jobs.
MOST = 100


class Missed(StrEnum):
    """What becomes of ticks while no scheduler ran, or the schedule was paused.

    SKIP: missed ticks make no job. A tick is missed when it is more than a minute late. A tick
    whose job could not be inserted is tried again until the next tick is due.

    ONCE: one job is inserted, for the last missed tick.

    ALL: a job is inserted for each missed tick, at most 100 in a transaction.
    """

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@dataclass(frozen=True)
class Due:
    """What a schedule has to do now.

    Attributes:
        ticks: the ticks that make jobs.
        skipped: the first tick that makes no job; None: each tick is among `ticks`.
        next: the tick after those; it may be due, too.
    """

    ticks: tuple[datetime, ...]
    skipped: datetime | None
    next: datetime


def due_ticks(
    cron: Cron, tick: datetime, now: datetime, missed: Missed, *, failed: bool = False
) -> Due:
    """Return what a schedule has to do now, by the database's clock.

    Args:
        tick: the next tick that was not handled. The ticks after it are computed from it, so
            none comes twice when the clock is set back.
        failed: the tick was tried before, and its job could not be inserted.

    Raises:
        ArgumentError: the expression is not valid on this machine.
    """
    if tick > now:
        return Due((), None, tick)
    ticks = _ticks(cron, tick, now, missed, failed)
    first_kept = ticks[0] if ticks else None
    if missed is Missed.ALL:
        return Due(ticks, None, cron.after(ticks[-1]))
    return Due(ticks, None if first_kept == tick else tick, cron.after(now))


def _ticks(
    cron: Cron, tick: datetime, now: datetime, missed: Missed, failed: bool
) -> tuple[datetime, ...]:
    if missed is Missed.ONCE:
        return (cron.latest(tick, now),)
    if missed is Missed.ALL:
        return (tick, *islice(_until(now, cron, tick), MOST - 1))
    begin = now - LATE
    later = tuple(_until(now, cron, max(tick, begin)))
    # The tick after one that failed takes its place: a unique index would refuse the jobs of both.
    is_kept = cron.after(tick) > now if failed else tick >= begin
    return (tick, *later) if is_kept else later


def _until(now: datetime, cron: Cron, begin: datetime) -> Iterator[datetime]:
    return takewhile(lambda found: found <= now, cron.all_after(begin))
