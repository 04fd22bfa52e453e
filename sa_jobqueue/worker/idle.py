"""When a worker claims again: at once while it finds jobs, else after a growing pause."""

from __future__ import annotations

import math
import random
import time
from datetime import timedelta

from ..wakeups import Wakeups

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)

#: The longest pause, if `poll` is shorter, while a watcher looks for due jobs in each `poll`.
POLL_BESIDE_LOOKS = timedelta(seconds=10)


class Idle:
    """The pauses between the claims of a worker.

    Args:
        poll: the longest pause while nothing is found.
        interval: a pause before each claim, to limit the load.
        wakeups: what wakes the worker meanwhile; None: nothing does.
    """

    def __init__(
        self, *, poll: timedelta, interval: timedelta, wakeups: Wakeups | None = None
    ) -> None:
        self._wakeups = wakeups
        self._longest = poll.total_seconds()
        self._interval = interval.total_seconds()
        self._empty = 0  # claims in a row that found nothing

    def claim_at(
        self, *, claimed: bool, found: bool, at_once: bool, held_until: float = math.inf
    ) -> float:
        """Return when the next claim is due, by time.monotonic().

        Args:
            claimed: the turn has claimed, or has tried to.
            found: it has claimed jobs.
            at_once: the turn has not made its claim; the next turn makes it.
            held_until: by time.monotonic(), when a queue that was left alone may be claimed from.
        """
        if claimed and not at_once:
            self._empty = 0 if found else self._empty + 1
            if self._wakeups is not None:
                self._wakeups.claimed(found=found)
        pause = self._interval
        if self._empty and not at_once:
            pause = max(pause, min(self._poll(), held_until - time.monotonic()))
        return time.monotonic() + pause if pause else 0.0

    def _poll(self) -> float:
        if self._wakeups is not None and self._wakeups.healthy:
            beside = POLL_BESIDE_LOOKS.total_seconds() if self._wakeups.looks else 0.0
            return max(self._longest, beside) * random.uniform(0.5, 1.0)
        shortest: float = min(SHORTEST_POLL.total_seconds(), self._longest)
        poll: float = min(shortest * 2 ** min(self._empty - 1, 20), self._longest)
        return poll * random.uniform(0.5, 1.0)
