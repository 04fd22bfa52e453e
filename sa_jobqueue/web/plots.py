"""Plots: samples as the points of an SVG's line, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """A line in a box, for the template.

    Attributes:
        line, area: points of a polyline, and of the polygon beneath it.
        most, last: the largest value, and the newest.
    """

    width: int
    height: int
    line: str
    area: str
    most: float
    last: float


def plot(values: Sequence[float], *, width: int = 120, height: int = 28) -> Plot | None:
    """Lay out values from left to right; None: a line needs two of them."""
    if len(values) < 2:
        return None
    most = max(values)
    step = width / (len(values) - 1)
    scale = (height - 2) / most if most else 0.0
    points = [
        f"{index * step:.1f},{height - 1 - value * scale:.1f}" for index, value in enumerate(values)
    ]
    line = " ".join(points)
    area = f"0,{height} {line} {width},{height}"
    return Plot(width, height, line, area, most, values[-1])
