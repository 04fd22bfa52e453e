"""The site: what all pages share, and samples of what the queues held in the last half hour.

A page that shows a queue adds what it has read anyway.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Engine

from ..counts import QueueStats, overview
from ..counts.count import queues_there
from ..errors import ArgumentError
from ..model.keys import beside, queue_name, queues_by_name
from ..queue import JobQueue, job_queue_of
from ..steering import Steering
from .rendering import TIME_LIMIT, reading

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
        rate: finishes per second; 0 where it is not known.
        taken: by time.monotonic().
    """

    due: int
    rate: float
    taken: float = field(default_factory=time.monotonic)


class Samples:
    """What pages have read of queues, by their names."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()

    def add(self, seen: Mapping[str, QueueStats]) -> None:
        """Keep what a page has read, unless the last samples are too young."""
        with self._lock:
            for name, queue in seen.items():
                kept = self._kept.setdefault(name, deque(maxlen=KEPT))
                sample = Sample(queue.due.number, queue.rate or 0.0)
                if not kept or sample.taken - kept[-1].taken > EVERY.total_seconds():
                    kept.append(sample)

    def of(self, name: str) -> list[Sample]:
        """Return the samples of a queue, the oldest first."""
        since = time.monotonic() - SHOWN.total_seconds()
        with self._lock:
            return [sample for sample in self._kept.get(name, ()) if sample.taken > since]


@dataclass(eq=False)
class Site:
    """An engine, the queues that may be seen, and what was sampled of them."""

    engine: Engine
    queues: Mapping[str, JobQueue[Any]]
    samples: Samples = field(default_factory=Samples)

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
    def names_of(self) -> dict[str, list[str]]:
        """The names on the site of the queues that workers and schedules call by one name."""
        found: dict[str, list[str]] = {}
        for name, queue in self.queues.items():
            found.setdefault(queue_name(queue), []).append(name)
        return found

    def overview(self, *names: str) -> dict[str, QueueStats]:
        """Describe the queues whose tables are there, or those of them that are named.

        What is read is a sample, too.
        """
        wanted = names or self.queues
        with reading(self.engine) as session:
            asked = {name: self.queues[name] for name in self.queues if name in wanted}
            there = queues_there(session.connection(), asked)
            seen = dict(zip(there, overview(session, there.values()), strict=True))
        self.samples.add(seen)
        return seen

    def beside(self, what: str) -> list[Any]:
        """List the tables of a kind that are beside the queues, each once."""
        found = [beside(queue.mapping, what) for queue in self.queues.values()]
        return list({id(each): each for each in found if each is not None}.values())

    def steering(self, name: str) -> Steering:
        """Return what changes the jobs of a queue."""
        return Steering(self.engine, self.queues[name], TIME_LIMIT)
