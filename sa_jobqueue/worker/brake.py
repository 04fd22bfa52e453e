"""A brake against error storms: a queue whose jobs all fail is claimed from more slowly.

A job that wants a retry counts as a failed job: neither is done.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from .outcomes import Failed, Retry

log = logging.getLogger("sa_jobqueue.worker")

#: After so many failures and retries in a row.
FAILURES = 20

#: The pauses between two claims of such a queue: each is twice as long as the one before.
FIRST_PAUSE = timedelta(milliseconds=100)
LONGEST_PAUSE = timedelta(seconds=10)


class Brake:
    """Slows down the claims from a queue while each of its jobs fails, or wants a retry.

    Args:
        queue: it is named in the log.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._failures = 0
        self._pause = timedelta(0)  # zero: the brake is off
        self._next = 0.0

    def most(self, wanted: int) -> int:
        """Return how many jobs may be claimed now; while braking, one job after each pause."""
        if not self._pause:
            return wanted
        return min(wanted, 1) if time.monotonic() >= self._next else 0

    @property
    def ends_at(self) -> float:
        """When the present pause ends, by time.monotonic(); inf: there is none."""
        return self._next if self._pause and self._next > time.monotonic() else math.inf

    def begin_pause(self) -> None:
        """Have the next job wait for a pause, if the brake is on; call it after each claim."""
        self._next = time.monotonic() + self._pause.total_seconds()

    def note(self, outcomes: Iterable[object]) -> None:
        """Note what became of the jobs of a turn."""
        before = self._failures
        for outcome in outcomes:
            failed = isinstance(outcome, Failed | Retry)
            self._failures = self._failures + 1 if failed else 0
        if self._failures < FAILURES:
            self._pause = timedelta(0)
        elif self._failures != before:
            self._slow_down()

    def _slow_down(self) -> None:
        if not self._pause:
            log.error(
                "the last %d jobs of %r failed, want a retry or could not be finished: this worker "
                "claims from it more slowly until a job succeeds",
                self._failures,
                self._queue,
            )
        self._pause = min(self._pause * 2, LONGEST_PAUSE) if self._pause else FIRST_PAUSE
        self.begin_pause()
