"""What the processes report, summed up for the eye; the proof does without."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .workload import Consumed, Produced

#: Rates are those of the last so many seconds.
WINDOW = 3.0


@dataclass
class Batches:
    """The claims of one consumer, or of all.

    ``candidates`` and ``lost`` stay None where no claim can know them.
    """

    claims: int = 0
    batches: int = 0
    jobs: int = 0
    smallest: int = 0
    largest: int = 0
    candidates: int | None = None
    lost: int | None = None

    def add(self, report: Consumed) -> None:
        """Count a claim; an empty one is no batch."""
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
class Figures:
    """Everything that was reported since the start."""

    consumers: int
    inserted: int = 0
    everybody: Batches = field(default_factory=Batches)
    by_consumer: dict[int, Batches] = field(init=False)
    _marks: deque[tuple[float, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.by_consumer = {number: Batches() for number in range(1, self.consumers + 1)}

    def add(self, report: object) -> None:
        """Take in one report."""
        if isinstance(report, Produced):
            self.inserted += report.rows
        elif isinstance(report, Consumed):
            self.everybody.add(report)
            self.by_consumer[report.consumer].add(report)

    def rates(self) -> tuple[float, float]:
        """Return claims and jobs per second, lately; called now and then."""
        now = time.monotonic()
        self._marks.append((now, self.everybody.claims, self.everybody.jobs))
        while now - self._marks[0][0] > WINDOW:
            self._marks.popleft()
        since, claims, jobs = self._marks[0]
        seconds = max(now - since, 0.001)
        return (self.everybody.claims - claims) / seconds, (self.everybody.jobs - jobs) / seconds


@dataclass
class AfterPause:
    """The average batch until a pause, and the first batch of each consumer after it."""

    average_before: float
    first: dict[int, int] = field(default_factory=dict)

    def add(self, report: object) -> None:
        """Take in one report of the time after the pause."""
        if isinstance(report, Consumed) and report.keys:
            self.first.setdefault(report.consumer, len(report.keys))

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes of the first batches, in the order in which they came."""
        return list(self.first.values())

    @property
    def average_after(self) -> float:
        """The average of the first batches."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else 0.0


def _sum(total: int | None, count: int | None) -> int | None:
    return total if count is None else (total or 0) + count
