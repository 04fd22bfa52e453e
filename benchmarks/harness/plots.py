"""Plots of what was measured, from its JSON files: SVG, the same bytes for the same figures.

matplotlib is imported when something is drawn: it is needed for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

#: Told apart by all eyes, and in print (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
)
GRID: dict[str, Any] = {"color": "#dddddd", "linewidth": 0.6}

#: Milliseconds that an axis names.
TICKS = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]

#: Of one bar, in parts of an adapter's place; and inches for each bar.
SHARE = 0.8
INCHES = 0.17


def plot_drains(path: Path) -> Path:
    """Draw the ratios of a run's adapters: a bar for each batch size, the baseline as a line."""
    read = json.loads(path.read_text())
    results = read["results"]
    adapters = list(dict.fromkeys(result["adapter"] for result in results))
    batches = sorted({result["batch"] for result in results})
    height = 1.3 + len(adapters) * (len(batches) + 0.6) * INCHES
    with _drawing(path, (8, height)) as figure:
        axes = figure.subplots()
        for place, batch in enumerate(batches):
            found = {one["adapter"]: one for one in results if one["batch"] == batch}
            _bars(axes, adapters, found, place, len(batches))
        _name_adapters(axes, adapters)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xlabel(f"jobs per second by those of {adapters[0]!r} in the same round")
        axes.set_title(_drained_on(read["conditions"]), loc="left")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(batches))
    return path.with_suffix(".svg")


def _bars(axes: Axes, adapters: Sequence[str], found: dict[str, Any], place: int, of: int) -> None:
    width = SHARE / of
    shown = [
        (number + width * (place - (of - 1) / 2), found[adapter])
        for number, adapter in enumerate(adapters)
        if adapter in found
    ]
    ratios = [one["ratio"] for _, one in shown]
    batch = shown[0][1]["batch"]
    bars = axes.barh(
        [y for y, _ in shown],
        ratios,
        height=width * 0.92,
        color=COLOURS[place % len(COLOURS)],
        label=f"batch {batch}",
    )
    labels = [f"{one['ratio']:.2f}  ({one['rate']:,.0f}/s)" for _, one in shown]
    # The line of the baseline does not strike a label through.
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.bar_label(bars, labels, padding=3, fontsize=6.5, color="#444444", bbox=behind)


def _name_adapters(axes: Axes, adapters: Sequence[str]) -> None:
    axes.set_yticks(range(len(adapters)), adapters)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(adapters) - 0.4, -0.6)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
    axes.grid(axis="x", **GRID)


def _drained_on(conditions: dict[str, Any]) -> str:
    return f"{_server(conditions)}, {conditions['workers']} workers"


def _server(conditions: dict[str, Any]) -> str:
    return f"{conditions['engine']} {conditions['server']}".strip()


def plot_growth(path: Path) -> Path:
    """Draw claims by rows done and by backlog, a drain's course, and what a crowd claims in."""
    read = json.loads(path.read_text())
    with _drawing(path, (9, 6.4)) as figure:
        upper, lower = figure.subplots(2, 2)
        figure.suptitle(_server(read["conditions"]), x=0.01, ha="left", fontsize=11)
        _by_size(upper[0], read["done"], "done", "rows done")
        _by_size(upper[1], read["backlog"], "backlog", "rows waiting")
        _courses(lower[0], read["courses"])
        _crowds(lower[1], read["crowds"])
    return path.with_suffix(".svg")


def _by_size(axes: Axes, found: Sequence[dict[str, Any]], by: str, named: str) -> None:
    """Draw medians as lines, and the ninety-ninth percentiles dotted above them."""
    lines = {"rows": BLUE, "entities": ORANGE}
    for kind, colour in lines.items():
        for snapshot, marker, dashes in ((False, "o", "-"), (True, "^", "--")):
            shown = [one for one in found if one["kind"] == kind and one["snapshot"] is snapshot]
            places = [one[by] for one in shown]
            label = f"{kind}{', old snapshot' if snapshot else ', p50'}"
            medians = [one["claim"]["p50"] for one in shown]
            axes.plot(places, medians, dashes, marker=marker, ms=4, color=colour, label=label)
            if not snapshot:
                worst = [one["claim"]["p99"] for one in shown]
                axes.plot(places, worst, ":", color=colour, lw=1, label=f"{kind}, p99")
    batch = found[0]["batch"] if found else 0
    axes.set_title(f"claim of {batch}, COMMIT included, by {named}", loc="left")
    sizes = sorted({one[by] for one in found})
    axes.set(xscale="log", yscale="log", xlabel=named, ylabel="ms")
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.minorticks_off()
    _name_decades(axes)
    axes.grid(axis="y", **GRID)
    axes.legend(fontsize=7, ncols=2)


def _short(number: int) -> str:
    """Write 1000 as 1k, and 1000000 as 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return str(number)


def _name_decades(axes: Axes) -> None:
    """Show a decade at least: what hardly differs is to look alike."""
    low, high = axes.get_ylim()
    low, high = low / 2, max(high * 4, low * 10)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _courses(axes: Axes, found: Sequence[dict[str, Any]]) -> None:
    for course in found:
        label = "old snapshot open" if course["snapshot"] else "no old snapshot"
        colour, marker = (RED, "^") if course["snapshot"] else (GREEN, "o")
        tenths = range(1, len(course["rates"]) + 1)
        axes.plot(tenths, course["rates"], marker=marker, ms=4, color=colour, label=label)
    jobs = found[0]["jobs"] if found else 0
    axes.set_title(f"the course of one drain of {jobs:,} jobs", loc="left")
    axes.set_xticks(range(1, 11))
    axes.set_xlabel("tenth of the drain")
    axes.set_ylabel("jobs per second")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", **GRID)
    if found:
        axes.legend(fontsize=7)


def _crowds(axes: Axes, found: Sequence[dict[str, Any]]) -> None:
    """Draw claims and finishes among producers and consumers; below, the errors."""
    shown = [one for one in found if one["claim"] is not None]
    for offset, (step, colour) in enumerate((("claim", BLUE), ("finish", GREEN))):
        places = [place + (offset - 0.5) * 0.36 for place in range(len(shown))]
        medians = [one[step]["p50"] for one in shown]
        above = [one[step]["p99"] - one[step]["p50"] for one in shown]
        axes.bar(places, medians, width=0.32, color=colour, label=f"{step}, p50 to p99")
        nothing = [0.0] * len(above)
        axes.errorbar(places, medians, [nothing, above], fmt="none", ecolor="#444444", capsize=3)
    axes.set_xticks(range(len(shown)), [_crowd_named(one, found) for one in shown])
    many = f"{found[0]['producers']} producers, {found[0]['consumers']} consumers" if found else ""
    axes.set_title(many, loc="left")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", **GRID)
    if shown:
        axes.legend(fontsize=7)


def _crowd_named(one: dict[str, Any], found: Sequence[dict[str, Any]]) -> str:
    """Name a batch size, with the errors that surfaced in each way of consuming."""
    errors = "\n".join(
        f"{other['way']}: {sum(other['surfaced'].values())} errors"
        for other in found
        if other["batch"] == one["batch"]
    )
    return f"batch {one['batch']}\n{errors}"


@contextmanager
def _drawing(path: Path, inches: tuple[float, float]) -> Iterator[Figure]:
    """Draw beside a JSON file, without a screen, a date, or random names."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        # Not from pyplot: that would choose a screen.
        figure = Figure(figsize=inches, layout="constrained")
        yield figure
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
