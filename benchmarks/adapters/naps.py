"""Handlers that take time: they sleep, as ``python -m benchmarks handlers`` tells their process.

The process writes when each handler began and ended into a file. This module imports nothing but
the standard library: peers run it in virtual environments of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

#: The environment variables: which handlers sleep for how long, and the folder of the files.
KIND, FOLDER = "SA_JOBQUEUE_BENCHMARK_NAPS", "SA_JOBQUEUE_BENCHMARK_FOLDER"

SHORT, LONG = 0.02, 2.0

#: Of so many mixed handlers one is long.
LONG_ONE_OF = 50


def seconds_of(kind: str, number: int) -> float:
    """Return for how long the handler of a job sleeps."""
    return LONG if kind == "mixed" and number % LONG_ONE_OF == 0 else SHORT


class Naps:
    """The naps of the handlers of one process.

    Attributes:
        kind: ``even`` or ``mixed``; empty: handlers do nothing.
    """

    def __init__(self) -> None:
        self.kind = os.environ.get(KIND, "")
        self._taken: list[tuple[float, float]] = []

    def take(self, number: int) -> None:
        """Sleep in this thread."""
        began = time.monotonic()
        time.sleep(seconds_of(self.kind, number))
        self._taken.append((began, time.monotonic()))

    async def take_awaited(self, number: int) -> None:
        """Sleep in this task."""
        began = time.monotonic()
        await asyncio.sleep(seconds_of(self.kind, number))
        self._taken.append((began, time.monotonic()))

    def write(self) -> None:
        """Write all naps so far into the file of this process."""
        if self.kind:
            path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
            path.write_text(json.dumps(self._taken), encoding="utf-8")
