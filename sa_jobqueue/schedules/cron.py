"""The times of a cron expression in a time zone, as times in UTC.

When the clocks change, the rules are those of Debian's cron. If minute and hour are both fixed, as
in ``30 2 * * *``, a time that does not exist comes right after the gap, and a time that exists
twice comes once, the first time. If the minute or the hour begins with ``*``, real time counts.

cronsim has the first rule for five fields only, and not if a sixth gives the seconds. In real time
it steps by 3600 seconds from a full hour, and misses minutes if the clocks change by half an hour
(Lord Howe). It therefore gets times without a zone, and this module finds when they occur.
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

#: How far back the search for the latest tick goes: each step reads some dozens of ticks at most.
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
        for local in self._local_after(moment):
            tick = local.astimezone(UTC)
            # In the second of two equal hours, the local times begin in the first.
            if tick > latest:
                yield tick
                latest = tick
        raise ArgumentError(
            f"the cron expression {self.expression!r} matches no time: change its days or its month"
        )

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick until `now`; `first` is one of the ticks until `now`."""
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
        if self.zone.key == "UTC":
            return self._simulated(local)
        naive = local.replace(tzinfo=None)
        if self._is_at_fixed_times:
            return self._once_each(self._simulated(naive))
        return self._in_real_time(self._simulated(naive - _repeated(local)))

    @property
    def _is_at_fixed_times(self) -> bool:
        """Whether minute and hour are fixed; a field before them gives the seconds."""
        return not any(field.startswith("*") for field in self.expression.split()[-5:-3])

    def _once_each(self, naive: Iterable[datetime]) -> Iterator[datetime]:
        """Yield local times once; those that do not exist come right after the gap."""
        for time in naive:
            first = time.replace(tzinfo=self.zone)
            while not _exists(first):
                first = first.replace(second=0) + timedelta(minutes=1)
            yield first

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
