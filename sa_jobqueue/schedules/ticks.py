"""Which ticks of a schedule are due, and what becomes of those that were missed."""

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

#: The most ticks for one transaction, where missed ticks are all made up for.
MOST = 100


class Missed(StrEnum):
    """What becomes of ticks while no scheduler ran, or the schedule was paused.

    SKIP: they are skipped. A tick is missed when it is more than a minute late. A tick whose job
    could not be inserted is tried again until the next one is due.

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


def due_ticks(
    cron: Cron, tick: datetime, now: datetime, missed: Missed, *, failed: bool = False
) -> Due:
    """Return what a schedule has to do now, by the database's clock.

    Args:
        tick: the next tick that was not handled. The ticks after it are computed from it, so
            none comes twice when the clock is set back.
        failed: it was tried before, and its job could not be inserted.

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
    # After a failure nobody looks for a while, and the ticks of this time are not missed.
    begin = now - (LATE + TRY_AGAIN if failed else LATE)
    first = [tick] if tick >= begin else []
    kept = (*first, *_until(now, cron, max(tick, begin)))
    return (tick,) if failed and not kept and cron.after(tick) > now else kept


def _until(now: datetime, cron: Cron, begin: datetime) -> Iterator[datetime]:
    return takewhile(lambda found: found <= now, cron.all_after(begin))
