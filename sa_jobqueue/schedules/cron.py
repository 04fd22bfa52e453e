"""The times of a cron expression in a time zone, as times in UTC.

When the clocks change, Debian's cron is the example. Where minute and hour are both fixed, as in
``30 2 * * *``, a time that does not exist comes right after the gap, and a time that exists twice
comes once, the first time. cronsim does this. Where either begins with ``*``, real time counts.
There cronsim goes through the hours by 3600 seconds from a full hour, and misses minutes where the
clocks change by half an hour (Lord Howe). Therefore cronsim gets times without a zone then, and
their places in real time are found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import ArgumentError

#: How far back the latest tick is looked for: each step reads some dozens of ticks at most.
_STEPS = (
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
    timedelta(days=31),
    timedelta(days=366),
)


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
                "Europe/Berlin, or install tzdata if it knows no time zones"
            ) from error

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after an aware time.

        Raises:
            ArgumentError: the expression is not valid, or never comes true.
        """
        return next(self.all_after(moment))

    def all_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after an aware time, each later than the one before.

        Raises:
            ArgumentError: as for :meth:`after`.
        """
        latest = moment
        for local in self._local_after(moment):
            tick = local.astimezone(UTC)
            # In the second of two equal hours, the local times begin in the first.
            if tick > latest:
                yield tick
                latest = tick
        raise ArgumentError(f"the cron expression {self.expression!r} never comes true")

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick until `now`, at least `first`, which is a tick until `now`."""
        for step in _STEPS:
            if now - step <= first:
                break
            found = list(takewhile(lambda tick: tick <= now, self.all_after(now - step)))
            if found:
                return found[-1]
        return [first, *takewhile(lambda tick: tick <= now, self.all_after(first))][-1]

    def _local_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks as local times, in their order; the first may be before `moment`."""
        local = moment.astimezone(self.zone)
        if self._is_at_fixed_times or self.zone.key == "UTC":
            return self._simulated(local)
        begin = local.replace(tzinfo=None) - _repeated(local)
        return self._in_real_time(self._simulated(begin))

    @property
    def _is_at_fixed_times(self) -> bool:
        """Whether minute and hour are fixed; with seconds, real time counts."""
        fields = self.expression.split()
        return len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])

    def _in_real_time(self, naive: Iterable[datetime]) -> Iterator[datetime]:
        """Leave out local times that do not exist, and yield the others as often as they exist."""
        again: list[datetime] = []
        for time in naive:
            first = time.replace(tzinfo=self.zone)
            if not _repeated(first):
                yield from again
                again.clear()
            if _exists(first):
                yield first
            if _repeated(first):
                again.append(first.replace(fold=1))
        yield from again

    def _simulated(self, begin: datetime) -> Iterator[datetime]:
        cronsim = _cronsim()
        try:
            ticks: Iterator[datetime] = cronsim.CronSim(self.expression, begin)
        except cronsim.CronSimError as error:
            raise ArgumentError(
                f"{self.expression!r} is no cron expression: {error}; the fields are minute, hour, "
                "day of the month, month and day of the week, as in '0 7 * * mon-fri'"
            ) from error
        return ticks


def _repeated(local: datetime) -> timedelta:
    """Return how long the clocks were set back, for a local time that exists twice, else zero."""
    first, second = (_offset(local.replace(fold=fold)) for fold in (0, 1))
    return max(first - second, timedelta(0))


def _exists(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(
        tzinfo=None
    )


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ArgumentError(
            "schedules need the package cronsim: pip install 'sa_jobqueue[schedules]'"
        ) from error
    return cronsim
