"""How often a watcher looks for due jobs, where nothing tells of them."""

from __future__ import annotations

import random
from datetime import timedelta

#: The pause between two looks while the last job is not long ago.
BETWEEN_LOOKS = timedelta(milliseconds=20)

#: So long after the last job the pauses begin to double.
WINDOW = timedelta(seconds=10)

#: A look that takes long is followed by a pause of so many times that long.
SHARE = 10


class Pace:
    """The pauses between looks.

    Args:
        longest: the `poll` of the worker.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest.total_seconds()
        self._pause = 0.0

    def pause(self, *, since_job: float, took: float, for_nothing: int) -> float:
        """Return the seconds until the next look.

        Args:
            since_job: seconds since the last job.
            took: seconds that the last look took.
            for_nothing: how often in a row a look found jobs that could not be claimed.
        """
        shortest = min(BETWEEN_LOOKS.total_seconds(), self._longest)
        if since_job < WINDOW.total_seconds() or for_nothing:
            self._pause = shortest * 2 ** min(for_nothing, 20)
        else:
            self._pause = max(self._pause, shortest) * 2
        self._pause = min(max(self._pause, took * SHARE), max(self._longest, took * SHARE))
        return self._pause * random.uniform(0.8, 1.0)
