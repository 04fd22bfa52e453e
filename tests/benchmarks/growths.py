"""Rows of the growth benchmark, from invented figures."""

from __future__ import annotations

from typing import Any

from benchmarks.growth.crowd import crowd_row
from benchmarks.growth.sizes import Size, timed_row
from benchmarks.harness.processes import Answer
from benchmarks.harness.report import Figures, Row


def timed(size: Size, *, snapshot: bool, seconds: float = 0.0012) -> Row:
    """Make the row of a size: a claim took 1 ms in the small table, `seconds` in the large one."""
    context = {"snapshot": snapshot, "kind": "rows", "batch": 10, "claims": 5}
    return timed_row(size, context, [(seconds,) * 3] * 50, [(0.001,) * 3] * 50)


def crowd(way: str, **surfaced: int) -> Row:
    """Make the row of 20,000 jobs among 2 producers and 8 consumers."""
    counts: dict[str, Any] = {"inside": surfaced, "surfaced": surfaced, "last": 4.0}
    result = {**counts, "run": [0] * 20_000}
    if way == "verbs":
        result |= {"claims": [0.001], "finishes": [0.002]}
    produced = [Answer({**counts, "surfaced": {}}, 0.0, 1.0, 0)] * 2
    idle = {**counts, "surfaced": {}, "run": []}
    consumed = [Answer(told, 0.0, 4.0, 0) for told in (result, *[idle] * 7)]
    return crowd_row(way, 10, 2, produced, consumed)


def growth() -> Figures:
    """Make figures of every part."""
    snapshots = (False, True)
    course = {"batch": 10, "workers": 2, "jobs": 1_000, "rounds": 1, "kept": 0.5}
    rates = [*[100.0] * 8, 50.0, 50.0]
    return {
        "done": [
            timed(Size(done, 20), snapshot=snapshot)
            for done in (10, 1_000)
            for snapshot in snapshots
        ],
        "backlog": [
            timed(Size(10, size), snapshot=snapshot) for size in (20, 200) for snapshot in snapshots
        ],
        "courses": [{"snapshot": snapshot, **course, "rates": rates} for snapshot in snapshots],
        "crowds": [crowd("verbs", deadlock=3), crowd("Worker")],
    }
