"""The reports of the processes, added up for display; the proof does not use them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .consumer import Consumed
from .producer import Produced

#: Rates cover the last so many seconds.
WINDOW = 3.0


@dataclass
class ClaimTotals:
    """The claims of a consumer, or of all consumers.

    ``candidates`` and ``lost`` stay None where the strategy cannot know them.
    """

    claims: int = 0
    batches: int = 0
    jobs: int = 0
    smallest: int = 0
    largest: int = 0
    candidates: int | None = None
    lost: int | None = None

    def add(self, report: Consumed) -> None:
        """Count a claim; an empty claim is no batch."""
        self.claims += 1
        self.candidates = _sum(self.candidates, report.candidates)
        self.lost = _sum(self.lost, report.lost)
        size = len(report.keys)
        if size:
            self.batches += 1
            self.jobs += size
            self.smallest = min(self.smallest or size, size)
            self.largest = max(self.largest, size)

    @property
    def average(self) -> float:
        """The average size of a batch."""
        return self.jobs / self.batches if self.batches else 0.0


@dataclass
class Totals:
    """The totals of all reports since the start."""

    consumers: int
    inserted: int = 0
    all_consumers: ClaimTotals = field(default_factory=ClaimTotals)
    by_consumer: dict[int, ClaimTotals] = field(init=False)
    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.by_consumer = {number: ClaimTotals() for number in range(1, self.consumers + 1)}

    def add(self, report: object) -> None:
        """Count a report."""
        if isinstance(report, Produced):
            self.inserted += report.rows
        elif isinstance(report, Consumed):
            self.all_consumers.add(report)
            self.by_consumer[report.consumer].add(report)

    def rates(self) -> tuple[float, float]:
        """Return claims and jobs per second over the last seconds, from one call to the next."""
        now, total = time.monotonic(), self.all_consumers
        self._samples.append((now, total.claims, total.jobs))
        while now - self._samples[0][0] > WINDOW:
            self._samples.popleft()
        since, claims, jobs = self._samples[0]
        seconds = max(now - since, 0.001)
        return (total.claims - claims) / seconds, (total.jobs - jobs) / seconds


@dataclass
class PauseEffect:
    """The average batch before a pause, and the first batch of each consumer after it."""

    average_before: float
    first: dict[int, int] = field(default_factory=dict)

    def add(self, report: object) -> None:
        """Note a report that came after the pause."""
        if isinstance(report, Consumed) and report.keys:
            self.first.setdefault(report.consumer, len(report.keys))

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes of the first batches, in the order of their reports."""
        return list(self.first.values())

    @property
    def average_after(self) -> float:
        """The average of the first batches."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else 0.0


def _sum(total: int | None, count: int | None) -> int | None:
    return total if count is None else (total or 0) + count
