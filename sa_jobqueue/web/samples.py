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

from ..overview import QueueOverview
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
        every: the time between two samples.
        watched: for how long they are taken after the last look.
    """

    def __init__(
        self,
        read: Callable[[], dict[str, QueueOverview]],
        *,
        every: timedelta = EVERY,
        watched: timedelta = WATCHED,
    ) -> None:
        self._read, self._every, self._watched = read, every, watched
        self._kept: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken = self._looked = -float("inf")

    def look(self, seen: dict[str, QueueOverview] | None = None) -> None:
        """See that samples are taken from now on.

        Args:
            seen: what a page has read of all queues; it is a sample, too.
        """
        with self._lock:
            self._looked = time.monotonic()
            if seen is not None:
                self._add(seen)
            if self._thread is None:
                self._stopped.clear()
                self._thread = threading.Thread(
                    target=self._run, name="sa_jobqueue samples", daemon=True
                )
                self._thread.start()

    def of(self, name: str) -> Sequence[Sample]:
        """Return the samples of a queue, the oldest first."""
        with self._lock:
            return tuple(self._kept.get(name, ()))

    @property
    def running(self) -> bool:
        """Whether samples are being taken."""
        return self._thread is not None

    def stop(self) -> None:
        """Take no more samples until somebody looks again."""
        thread = self._thread
        self._stopped.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every.total_seconds()):
            if self._is_unwatched():
                return
            self._take()
        self._thread = None

    def _is_unwatched(self) -> bool:
        """Tell whether nobody has looked for a while; if so, the thread is gone."""
        with self._lock:
            if time.monotonic() - self._looked <= self._watched.total_seconds():
                return False
            self._thread = None
            return True

    def _take(self) -> None:
        try:
            seen = self._read()
        except Exception as error:  # the page tells what is wrong with the database
            log.debug("no sample: %s", drivers_words(error))
            return
        with self._lock:
            self._add(seen)

    def _add(self, seen: dict[str, QueueOverview]) -> None:
        """Keep a sample, unless the last one is too young: several visitors are as one."""
        now = time.monotonic()
        if now - self._taken < self._every.total_seconds() * 0.8:
            return
        self._taken = now
        for name, queue in seen.items():
            sample = Sample(queue.due.number, queue.rate or 0.0)
            self._kept.setdefault(name, deque(maxlen=KEPT)).append(sample)
