"""The ticks of a cron expression in a time zone: which are due, and what becomes of missed ones.

When the clocks change, its rules are those of Debian's cron. If minute and hour are both fixed, as
in ``30 2 * * *``, a time that does not exist comes right after the gap, and a time that exists
twice comes once, the first time. If the minute or the hour begins with ``*``, real time counts.
docs/schedules.md says where cronsim differs: with seconds, and for changes by half an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import ArgumentError

#: A tick that is later than this is missed, where missed ticks are skipped.
LATE = timedelta(minutes=1)

#: When a schedule whose jobs could not be inserted is tried again.
TRY_AGAIN = timedelta(minutes=1)

#: The most ticks for one transaction, if all missed ticks make jobs.
MOST = 100


@dataclass(frozen=True)
class Cron:
    """An expression of five fields, or of six with the seconds first, in a time zone."""

    expression: str
    timezone: str = "UTC"

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone.

        Raises:
            ArgumentError: this machine does not know it.
        """
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ArgumentError(
                f"this machine does not know the time zone {self.timezone!r}: write it as in "
                "Europe/Berlin, or install tzdata if it has no time zone data"
            ) from error

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after an aware time.

        Raises:
            ArgumentError: the expression is not valid, or matches no time.
        """
        return next(self.all_after(moment))

    def all_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after an aware time, each later than the one before.

        Raises:
            ArgumentError: as for :meth:`after`.
        """
        latest = moment
        for local in self._simulated(moment):
            tick = local.astimezone(UTC)
            if tick > latest:  # else it is the first of two equal local times
                yield tick
                latest = tick
        raise ArgumentError(
            f"the cron expression {self.expression!r} matches no time: change its days or its month"
        )

    def between(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the ticks after `begin`, and until `end`."""
        return takewhile(lambda tick: tick <= end, self.all_after(begin))

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick until `now`; `first` is one of the ticks until `now`."""
        # cronsim begins before its moment: a microsecond later, `now` is among its times.
        for local in self._simulated(now + timedelta(microseconds=1), reverse=True):
            tick = local.astimezone(UTC)
            if tick <= now:
                return max(first, tick)
        return first

    def _simulated(self, moment: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        try:
            import cronsim
        except ImportError as error:
            raise ArgumentError(
                "schedules need the package cronsim: pip install 'sa_jobqueue[schedules]'"
            ) from error
        try:
            local = moment.astimezone(self.zone)
            ticks: Iterator[datetime] = cronsim.CronSim(self.expression, local, reverse=reverse)
        except cronsim.CronSimError as error:
            raise ArgumentError(
                f"{self.expression!r} is no cron expression: {error}; the fields are minute, hour, "
                "day of the month, month and day of the week, as in '0 7 * * mon-fri'"
            ) from error
        return ticks


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
    ticks: tuple[datetime, ...]
    if missed is Missed.ALL:
        ticks = (tick, *islice(cron.between(tick, now), MOST - 1))
        return Due(ticks, None, cron.after(ticks[-1]))
    if missed is Missed.ONCE:
        ticks = (cron.latest(tick, now),)
    else:
        begin = now - LATE
        ticks = tuple(cron.between(max(tick, begin), now))
        # The tick after one that failed takes its place: a unique index would refuse both jobs.
        if cron.after(tick) > now if failed else tick >= begin:
            ticks = (tick, *ticks)
    return Due(ticks, None if tick in ticks else tick, cron.after(now))
