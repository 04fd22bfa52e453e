"""The plot of growth: claims by rows done and by backlog, a drain's course, and the crowds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness.plots import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    finish_axes,
    finish_log_axes,
    server_of,
)
from benchmarks.harness.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(figure: Figure, written: dict[str, Any]) -> None:
    """Draw all four parts."""
    figure.set_size_inches(9, 6.4)
    upper, lower = figure.subplots(2, 2)
    figure.suptitle(server_of(written), x=0.01, ha="left", fontsize=11)
    _by_size(upper[0], written["done"], "done", "rows done")
    _by_size(upper[1], written["backlog"], "backlog", "rows waiting")
    _courses(lower[0], written["courses"])
    _crowds(lower[1], written["crowds"])


def _by_size(axes: Axes, rows: Sequence[Row], by: str, label: str) -> None:
    """Draw medians as lines, and the ninety-ninth percentiles dotted above them."""
    for kind, colour in (("rows", BLUE), ("entities", ORANGE)):
        for snapshot, marker, dashes in ((False, "o", "-"), (True, "^", "--")):
            shown = [row for row in rows if row["kind"] == kind and row["snapshot"] is snapshot]
            sizes = [row[by] for row in shown]
            name = f"{kind}{', old snapshot' if snapshot else ', p50'}"
            medians = [row["claim"]["p50"] for row in shown]
            axes.plot(sizes, medians, dashes, marker=marker, ms=4, color=colour, label=name)
            if not snapshot:
                worst = [row["claim"]["p99"] for row in shown]
                axes.plot(sizes, worst, ":", color=colour, lw=1, label=f"{kind}, p99")
    title = f"claim of {rows[0]['batch'] if rows else 0}, COMMIT included, by {label}"
    finish_log_axes(axes, sorted({row[by] for row in rows}), title=title, xlabel=label, ylabel="ms")


def _courses(axes: Axes, courses: Sequence[Row]) -> None:
    for course in courses:
        label = "old snapshot open" if course["snapshot"] else "no old snapshot"
        colour, marker = (RED, "^") if course["snapshot"] else (GREEN, "o")
        tenths = range(1, len(course["rates"]) + 1)
        axes.plot(tenths, course["rates"], marker=marker, ms=4, color=colour, label=label)
    axes.set_xticks(range(1, 11))
    title = f"the course of one drain of {courses[0]['jobs'] if courses else 0:,} jobs"
    labels = {"xlabel": "tenth of the drain", "ylabel": "jobs per second"}
    finish_axes(axes, title=title, legend=bool(courses), **labels)


def _crowds(axes: Axes, crowds: Sequence[Row]) -> None:
    """Draw claims and finishes among producers and consumers; below, the errors."""
    shown = [crowd for crowd in crowds if crowd["claim"] is not None]
    for offset, (step, colour) in enumerate((("claim", BLUE), ("finish", GREEN))):
        x = [index + (offset - 0.5) * 0.36 for index in range(len(shown))]
        medians = [crowd[step]["p50"] for crowd in shown]
        above = [crowd[step]["p99"] - crowd[step]["p50"] for crowd in shown]
        axes.bar(x, medians, width=0.32, color=colour, label=f"{step}, p50 to p99")
        below = [0.0] * len(above)
        axes.errorbar(x, medians, [below, above], fmt="none", ecolor="#444444", capsize=3)
    axes.set_xticks(range(len(shown)), [_batch_and_errors(crowd, crowds) for crowd in shown])
    title = "{producers} producers, {consumers} consumers".format_map(crowds[0]) if crowds else ""
    finish_axes(axes, title=title, legend=bool(shown), ylabel="ms")


def _batch_and_errors(shown: Row, crowds: Sequence[Row]) -> str:
    """Name a batch size, and below it the errors that surfaced in each way of consuming."""
    errors = (
        f"{crowd['way']}: {sum(crowd['surfaced'].values())} errors"
        for crowd in crowds
        if crowd["batch"] == shown["batch"]
    )
    return "\n".join((f"batch {shown['batch']}", *errors))
