"""Rounds: all variants in turn, so that a slow minute is everybody's; and ratios by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import TypeVar

K = TypeVar("K")
R = TypeVar("R")


def in_turn(
    variants: Mapping[K, Callable[[], R]], rounds: int, *, warm_up: int = 0
) -> dict[K, list[R]]:
    """Run every variant once in each round; return what each returned, round by round.

    Each round begins with another variant, so that none always runs after the same other variant.

    Args:
        warm_up: so many rounds come first, and do not count.
    """
    names = list(variants)
    found: dict[K, list[R]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            result = variants[name]()
            if number >= 0:
                found[name].append(result)
    return found


def ratios(own: Iterable[float], base: Iterable[float]) -> list[float]:
    """Divide each round's figure by the baseline's of the same round."""
    return [figure / baseline for figure, baseline in zip(own, base, strict=True)]


def median_ratio(own: Iterable[float], base: Iterable[float]) -> float:
    """Return the median of the ratios."""
    return round(median(ratios(own, base)), 3)
