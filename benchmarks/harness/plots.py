"""Plots of what was measured, from its JSON files: SVG, the same bytes for the same figures.

matplotlib is imported when something is drawn: nothing else needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Draws what a JSON file holds, on a figure whose size it sets.
Draw = Callable[["Figure", dict[str, Any]], None]

#: White behind everything: a page in dark mode shows it as it is.
STYLE: Any = {
    "svg.hashsalt": "sa_jobqueue",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

#: Colours that all eyes tell apart, also in print (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
)
GRID: dict[str, Any] = {"color": "#dddddd", "linewidth": 0.6}

#: The values that a logarithmic axis names.
TICKS = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]


def draw_beside(path: Path, draw: Draw) -> Path:
    """Draw beside a JSON file, without a screen, a date, or random names; return the path."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    plot = path.with_suffix(".svg")
    with mpl.rc_context(STYLE):
        # Not from pyplot: that would choose a screen.
        figure = Figure(layout="constrained")
        draw(figure, json.loads(path.read_text()))
        figure.savefig(plot, metadata={"Date": None, "Creator": None})
    return plot


def server_of(written: dict[str, Any]) -> str:
    """Name the database and its version, for a title."""
    return f"{written['conditions']['database']} {written['conditions']['server']}".strip()


def finish_axes(axes: Axes, *, title: str, legend: bool = True, **labels: Any) -> None:
    """Name the axes, which begin at zero, and draw a grid."""
    axes.set_title(title, loc="left")
    axes.set(ylim=(0, None), **labels)
    axes.grid(axis="y", **GRID)
    if legend:
        axes.legend(fontsize=7)


def finish_log_axes(axes: Axes, sizes: Sequence[int], *, title: str, **labels: Any) -> None:
    """Name axes that are both logarithmic."""
    axes.set_title(title, loc="left")
    axes.set(xscale="log", yscale="log", **labels)
    axes.set_xticks(sizes, [short(size) for size in sizes])
    axes.minorticks_off()
    _name_decades(axes)
    axes.grid(axis="y", **GRID)
    axes.legend(fontsize=7, ncols=2)


def _name_decades(axes: Axes) -> None:
    """Show at least a decade: figures that hardly differ are to look alike."""
    low, high = axes.get_ylim()
    low, high = low / 2, max(high * 4, low * 10)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def short(number: int) -> str:
    """Write 1000 as 1k, and 1000000 as 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return str(number)
