"""The site: what all pages share, and samples of what the queues held in the last half hour.

A page adds what it has read anyway. In between a thread takes samples, and ends when nobody has
looked for some minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Engine

from ..counts import QueueStats, overview
from ..counts.count import queues_there
from ..doctor import Report, examine
from ..errors import ArgumentError
from ..model.keys import beside, queue_name, queues_by_name
from ..queue import JobQueue, job_queue_of
from ..steering import Steering
from .rendering import TIME_LIMIT, drivers_words, reading, reading_again

log = logging.getLogger("sa_jobqueue.web")

#: How long a report of the doctor is kept, and how soon somebody may have another one.
OLDEST, SOONEST = timedelta(seconds=60), timedelta(seconds=5)


@dataclass(frozen=True)
class KeptReport:
    """A report of the doctor, and its time by time.monotonic()."""

    report: Report
    made: float

    @property
    def age(self) -> timedelta:
        """How old the report is."""
        return timedelta(seconds=time.monotonic() - self.made)


@dataclass(eq=False)
class Site:
    """An engine, the queues that may be seen, and what was sampled of them."""

    engine: Engine
    queues: Mapping[str, JobQueue[Any]]
    _reports: dict[str, KeptReport] = field(default_factory=dict)
    _examining: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, engine: Engine, queues: Mapping[str, Any] | Iterable[Any]) -> Site:
        """Make a site.

        Raises:
            ArgumentError: something is no queue, two have one name, or a name makes no address.
        """
        named = queues_by_name(queues)
        for name in named:
            if name in ("", ".", "..") or "/jobs/" in name:
                raise ArgumentError(
                    f"{name!r} makes no address of a page: name the queue otherwise"
                )
        return cls(engine, {name: job_queue_of(queue) for name, queue in named.items()})

    @cached_property
    def samples(self) -> Samples:
        """What the queues held in the last half hour."""
        return Samples(self.overview)

    @cached_property
    def names_of(self) -> dict[str, list[str]]:
        """The names on the site of the queues that workers and schedules call by one name."""
        found: dict[str, list[str]] = {}
        for name, queue in self.queues.items():
            found.setdefault(queue_name(queue), []).append(name)
        return found

    def overview(self, *names: str) -> dict[str, QueueStats]:
        """Describe the queues whose tables are there, or those of them that are named."""
        wanted = names or self.queues
        with reading(self.engine) as session:
            asked = {name: self.queues[name] for name in self.queues if name in wanted}
            there = queues_there(session.connection(), asked)
            return dict(zip(there, overview(session, there.values()), strict=True))

    def report(self, name: str, *, again: bool = False) -> KeptReport:
        """Have the doctor examine a queue; for a minute, or, again, for 5 s, a report is kept."""
        with self._examining:  # who comes meanwhile gets the same report
            kept = self._reports.get(name)
            if kept is None or kept.age > (SOONEST if again else OLDEST):
                with reading_again(self.engine) as session:
                    report = examine(session, self.queues[name])
                kept = self._reports[name] = KeptReport(report, time.monotonic())
            return kept

    def beside(self, what: str) -> list[Any]:
        """List the tables of a kind that are beside the queues, each once."""
        found = [beside(queue.mapping, what) for queue in self.queues.values()]
        return list({id(each): each for each in found if each is not None}.values())

    def steering(self, name: str) -> Steering:
        """Return what changes the jobs of a queue."""
        return Steering(self.engine, self.queues[name], TIME_LIMIT)


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
