"""What growth came to, in figures that nobody measured."""

from __future__ import annotations

from benchmarks.growth.courses import Course
from benchmarks.growth.crowd import Crowd
from benchmarks.growth.report import Growth
from benchmarks.growth.sizes import Latency, Size, Timed


def timed(size: Size, *, snapshot: bool, p50: float = 1.2) -> Timed:
    """Make the figures of one size; those of the small table are one millisecond."""
    large, small = Latency(p50, 3.0), Latency(1.0, 2.0)
    return Timed(size, snapshot, "rows", 10, 5, large, large, large, small, small, small)


def crowd(way: str, **surfaced: int) -> Crowd:
    """Make the figures of 20,000 jobs among producers and consumers."""
    latency = Latency(1.0, 2.0) if way == "verbs" else None
    return Crowd(way, 10, 2, 8, 20_000, 4.0, surfaced, surfaced, {}, latency, latency)


def growth() -> Growth:
    """Make one of everything."""
    snapshots = (False, True)
    rates = (*[100.0] * 8, 50.0, 50.0)
    return Growth(
        done=[timed(Size(done, 20), snapshot=one) for done in (10, 1_000) for one in snapshots],
        backlog=[timed(Size(10, size), snapshot=one) for size in (20, 200) for one in snapshots],
        courses=[Course(one, 10, 2, 1_000, 1, rates) for one in snapshots],
        crowds=[crowd("verbs", deadlock=3), crowd("Worker")],
    )
