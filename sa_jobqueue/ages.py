"""How long something has lasted, for people to read."""

from __future__ import annotations

from datetime import timedelta

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def age_text(age: timedelta | None, unknown: str = "-") -> str:
    """Write a duration in two units at most: ``3h 12m``; `unknown` where there is none."""
    if age is None:
        return unknown
    seconds = max(round(age.total_seconds()), 0)
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m {seconds % _MINUTE}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h {seconds % _HOUR // _MINUTE}m"
    return f"{seconds // _DAY}d {seconds % _DAY // _HOUR}h"
