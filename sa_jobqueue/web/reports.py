"""Reports of the doctor, kept for a minute: an examination takes some dozens of statements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ..doctor import Report

KEPT = timedelta(seconds=60)

#: So often at most somebody may have the doctor look again.
SOONEST = timedelta(seconds=5)


@dataclass(frozen=True)
class KeptReport:
    """A report, and its time by time.monotonic()."""

    report: Report
    made: float

    @property
    def age(self) -> timedelta:
        """How old the report is."""
        return timedelta(seconds=time.monotonic() - self.made)


class Reports:
    """The newest reports by the names of the queues.

    Args:
        examine: makes a report.
    """

    def __init__(self, examine: Callable[[str], Report]) -> None:
        self._examine = examine
        self._kept: dict[str, KeptReport] = {}
        self._lock = threading.Lock()

    def of(self, name: str, *, again: bool = False) -> KeptReport:
        """Return the report of a queue; `again` asks for one that is younger."""
        with self._lock:  # who comes meanwhile gets the same report
            kept = self._kept.get(name)
            if kept is None or kept.age > (SOONEST if again else KEPT):
                kept = self._kept[name] = KeptReport(self._examine(name), time.monotonic())
            return kept
