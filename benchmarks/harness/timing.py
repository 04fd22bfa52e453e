"""How long something takes: once, or as percentiles."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timed:
    """Seconds that something took, and seconds of CPU of this process alone."""

    seconds: float
    cpu: float


def timed(work: Callable[[], object]) -> Timed:
    """Time something; garbage is collected before, not meanwhile."""
    gc.collect()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    work()
    return Timed(time.perf_counter() - begun, time.process_time() - begun_cpu)


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds: ``p50`` and ``p99``."""
    ordered = sorted(seconds)
    return {
        f"p{percent}": round(ordered[len(ordered) * percent // 100] * 1e3, 4)
        for percent in (50, 99)
    }
