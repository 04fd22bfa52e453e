"""The site: what all pages share, and samples of what the queues held in the last half hour.

A page that shows a queue adds what it has read anyway.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine

from ..counts import Count, QueueStats
from ..counts.reading import TIME_LIMIT, Seen, look
from ..errors import ArgumentError
from ..model.keys import beside, queue_name, queues_by_name
from ..queue import JobQueue, job_queue_of
from ..steering import Steering

T = TypeVar("T")

#: How old the last sample of a queue is when another one is kept: several visitors are as one.
EVERY = timedelta(seconds=5)

#: How long a sample is shown.
SHOWN = timedelta(minutes=30)

#: So many samples are kept.
KEPT = SHOWN // EVERY


@dataclass(frozen=True)
class Sample:
    """What a queue held at one moment.

    Attributes:
        waiting: the due jobs with those behind their key.
        rate: finishes per second; None: nobody knows.
        taken: by time.monotonic().
    """

    waiting: Count
    rate: float | None
    taken: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Site:
    """A database, the queues that may be seen, and what was sampled of them."""

    engine: Engine
    queues: Mapping[str, JobQueue[Any]]
    #: What pages have read of the queues, by their names, the oldest first.
    samples: dict[str, deque[Sample]] = field(default_factory=dict)
    #: How many findings the doctor had when somebody last looked, by the names of queues.
    findings: dict[str, int] = field(default_factory=dict)
    _asked: tuple[Future[Any], float] | None = None

    @classmethod
    def of(cls, engine: Engine, queues: Mapping[str, Any] | Iterable[Any]) -> Site:
        """Make a site.

        Raises:
            ArgumentError: something is no queue, two have one name, or a name makes no address.
        """
        named = queues_by_name(queues)
        for name in named:
            if name in ("", ".", "..") or "/jobs/" in name:
                raise ArgumentError(f"{name!r} makes no address: name the queue otherwise")
        return cls(engine, {name: job_queue_of(queue) for name, queue in named.items()})

    @cached_property
    def place(self) -> str:
        """The database's name, for the head of each page: nobody shall steer the wrong one."""
        url = self.engine.url
        name = Path(url.database or "memory").name
        return f"{name} on {url.host}" if url.host else name

    @cached_property
    def names_of(self) -> dict[str, list[str]]:
        """The names on the site of the queues that workers and schedules call by one name."""
        found: dict[str, list[str]] = {}
        for name, queue in self.queues.items():
            found.setdefault(queue_name(queue), []).append(name)
        return found

    def overview(self, *names: str) -> dict[str, Seen]:
        """Describe the queues, or those of them that are named. What is read is a sample, too."""
        seen = look(self.engine, {name: self.queues[name] for name in names or self.queues})
        for name, it in seen.items():
            kept = self.samples.setdefault(name, deque(maxlen=KEPT))
            young = kept and time.monotonic() - kept[-1].taken <= EVERY.total_seconds()
            if isinstance(it, QueueStats) and not young:
                kept.append(Sample(it.waiting, it.rate))
        return seen

    def sampled(self, name: str) -> list[Sample]:
        """Return the samples of a queue in the last half hour, the oldest first."""
        since = time.monotonic() - SHOWN.total_seconds()
        return [sample for sample in list(self.samples.get(name, ())) if sample.taken > since]

    def ask(self, work: Callable[[Site], T]) -> tuple[Future[T], float]:
        """Have a thread do some work; return what it will find, and since when it works.

        While one works no other begins: a database that is silent has one thread.
        """
        if self._asked is None or self._asked[0].done():
            future: Future[T] = Future()
            self._asked = future, time.monotonic()

            def run() -> None:
                try:
                    future.set_result(work(self))
                except Exception as error:
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True).start()
        return self._asked

    def beside(self, what: str) -> list[Any]:
        """List the tables of a kind that are beside the queues, each once."""
        found = [beside(queue.mapping, what) for queue in self.queues.values()]
        return list({id(each): each for each in found if each is not None}.values())

    def steering(self, name: str) -> Steering:
        """Return what changes the jobs of a queue."""
        return Steering(self.engine, self.queues[name], TIME_LIMIT)
