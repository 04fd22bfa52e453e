"""The alarm of a worker: the first ring is never delayed, and one for nothing brings a pause.

Where many idle workers wait for one queue, each job wakes all of them, and one gets it. The others
then let some time pass before they react again; each takes another time. A ring during this time is
postponed, and never dropped: whoever is there rings at its end, the watcher or the worker itself.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

#: The pause after a ring for nothing: at first, and after many in a row.
FIRST_PAUSE = timedelta(milliseconds=20)
LONGEST_PAUSE = timedelta(milliseconds=250)

#: After so long without a ring the next one counts as the first again.
FORGOTTEN = timedelta(seconds=1)


class Alarm:
    """Wakes a worker; any thread may ring.

    Args:
        wake: has the worker claim now.
        postponed: called when a ring was postponed; `pending_at` tells until when.

    Attributes:
        idle: the last claim found nothing.
        last_job: when a claim last found a job, by time.monotonic().
        for_nothing: how many rings in a row found nothing.
        pending_at: when the ring comes that was postponed; infinity: none was.
    """

    def __init__(self, wake: Callable[[], None], postponed: Callable[[], None]) -> None:
        self._wake = wake
        self._postponed = postponed
        self._lock = threading.Lock()
        self._rang_at = -math.inf
        self._rang = False
        self._quiet_until = 0.0
        self.idle = False
        self.last_job = time.monotonic()
        self.for_nothing = 0
        self.pending_at = math.inf

    def ring(self) -> None:
        """Wake the worker now; during its pause, postpone that to the end of the pause."""
        with self._lock:
            now, known = time.monotonic(), self.pending_at
            in_pause = now < self._quiet_until
            if in_pause:
                self.pending_at = self._quiet_until
            else:
                self._note_ring(now)
        if not in_pause:
            self._wake()
        elif self.pending_at != known:
            self._postponed()

    def ring_postponed(self) -> None:
        """Wake the worker, if a ring was postponed, and its time has come."""
        with self._lock:
            now = time.monotonic()
            if now < self.pending_at:
                return
            self._note_ring(now)
        self._wake()

    def _note_ring(self, now: float) -> None:
        if now - self._rang_at > FORGOTTEN.total_seconds():
            self.for_nothing = 0
        self._rang_at, self._rang, self.pending_at = now, True, math.inf

    def claimed(self, *, found: bool) -> None:
        """Note a claim, and whether it found jobs."""
        with self._lock:
            self.idle = not found
            if found:
                self.last_job = time.monotonic()
                self.for_nothing = 0
            elif self._rang:
                self.for_nothing += 1
                self._quiet_until = time.monotonic() + self._pause()
            self._rang = False

    def _pause(self) -> float:
        doubled: timedelta = FIRST_PAUSE * 2 ** min(self.for_nothing - 1, 10)
        return min(doubled, LONGEST_PAUSE).total_seconds() * random.uniform(0.5, 1.0)
