"""Samples: what the queues held in the last half hour, taken while somebody looks.

A page adds what it has read anyway. In between a thread takes samples, and ends when nobody has
looked for some minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..counts import QueueStats
from .reading import drivers_words

log = logging.getLogger("sa_jobqueue.web")

EVERY = timedelta(seconds=5)

#: How long samples are taken after the last look.
WATCHED = timedelta(minutes=5)

#: So many samples are kept: those of half an hour.
KEPT = timedelta(minutes=30) // EVERY


@dataclass(frozen=True)
class Sample:
    """What a queue held at one moment.

    Attributes:
        rate: finishes per second; 0 where it is not known.
    """

    due: int
    rate: float


class Samples:
    """The samples of queues, by their names.

    Args:
        read: reads the queues; called in a thread of our own.
    """

    def __init__(self, read: Callable[[], dict[str, QueueStats]]) -> None:
        self._read = read
        self._kept: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken = self._looked = -float("inf")

    def look(self, seen: dict[str, QueueStats] | None = None) -> None:
        """See that samples are taken from now on.

        Args:
            seen: what a page has read of all queues; it is a sample, too.
        """
        with self._lock:
            self._looked = time.monotonic()
            self._add(seen or {})
            if self._thread is None:
                self._stopped.clear()
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def of(self, name: str) -> Sequence[Sample]:
        """Return the samples of a queue, the oldest first."""
        with self._lock:
            return tuple(self._kept.get(name, ()))

    def stop(self) -> None:
        """Take no more samples until somebody looks again."""
        thread = self._thread
        self._stopped.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY.total_seconds()):
            with self._lock:
                if time.monotonic() - self._looked > WATCHED.total_seconds():
                    self._thread = None  # before somebody can look again
                    return
            try:
                seen = self._read()
            except Exception as error:  # the page tells what is wrong with the database
                log.debug("no sample: %s", drivers_words(error))
                continue
            with self._lock:
                self._add(seen)
        self._thread = None

    def _add(self, seen: dict[str, QueueStats]) -> None:
        """Keep a sample, unless the last one is too young: several visitors are as one."""
        now = time.monotonic()
        if seen and now - self._taken > EVERY.total_seconds() * 0.8:
            self._taken = now
            for name, queue in seen.items():
                kept = self._kept.setdefault(name, deque(maxlen=KEPT))
                kept.append(Sample(queue.due.number, queue.rate or 0.0))
