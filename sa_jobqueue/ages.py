"""How long something lasts or has lasted, for people to read."""

from __future__ import annotations

from datetime import timedelta

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


def duration_text(duration: timedelta | float) -> str:
    """Write a duration, or so many seconds, as in a sentence: ``1.2 s``, ``2 h 5 min``."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds < _MINUTE:
        return f"{round(seconds, 3):.3g} s"
    unit, name, part, part_name = next(each for each in _UNITS if seconds >= each[0])
    whole, rest = divmod(round(seconds / part), unit // part)
    return f"{whole} {name} {rest} {part_name}" if rest else f"{whole} {name}"
