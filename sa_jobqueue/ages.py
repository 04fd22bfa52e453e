"""Durations, times, rates and numbers of things, for people to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400

#: The units of a sentence, each with the next smaller one.
_UNITS = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"))


def age_text(age: timedelta | None, unknown: str = "-") -> str:
    """Write a duration in two units at most: ``3h 12m``; `unknown` where there is none."""
    if age is None:
        return unknown
    seconds = max(round(age.total_seconds()), 0)
    for unit, name, part, part_name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit}{name[0]} {seconds % unit // part}{part_name[0]}"
    return f"{seconds}s"


def rough_text(age: timedelta) -> str:
    """Write a duration in one unit: ``12 s``, ``4 min``, ``3 h``, ``2 d``."""
    seconds = max(int(age.total_seconds()), 0)
    unit, name = next(((size, name) for size, name, *_ in _UNITS if seconds >= size), (1, "s"))
    return f"{seconds // unit} {name}"


def duration_text(duration: timedelta | float) -> str:
    """Write a duration, or so many seconds, as in a sentence: ``1.2 s``, ``2 h 5 min``."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds < _MINUTE:
        return f"{round(seconds, 3):.3g} s"
    unit, name, part, part_name = next(each for each in _UNITS if seconds >= each[0])
    whole, rest = divmod(round(seconds / part), unit // part)
    return f"{whole} {name} {rest} {part_name}" if rest else f"{whole} {name}"


def time_text(moment: datetime | None, unknown: str = "-") -> str:
    """Write a time in UTC, to the second; one without a time zone is in UTC already."""
    if moment is None:
        return unknown
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M:%S}"


def rate_text(rate: float | None, unknown: str = "-") -> str:
    """Write a number for each second, with two digits where it is small."""
    if rate is None:
        return unknown
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def count_text(number: int, what: str) -> str:
    """Write a number of things: ``1 job``, ``2 jobs``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
