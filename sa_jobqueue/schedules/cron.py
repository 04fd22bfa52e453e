"""The times of a cron expression in a time zone, as times in UTC: cronsim's, as they are.

When the clocks change, its rules are those of Debian's cron. If minute and hour are both fixed, as
in ``30 2 * * *``, a time that does not exist comes right after the gap, and a time that exists
twice comes once, the first time. If the minute or the hour begins with ``*``, real time counts.
docs/schedules.md says where cronsim differs: with seconds, and for changes by half an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import ArgumentError


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
