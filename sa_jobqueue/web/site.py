"""The site: what all pages share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
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
from .reading import TIME_LIMIT, reading, reading_again
from .samples import Samples

#: How long a report of the doctor is kept, and how soon somebody may have another one.
KEPT, SOONEST = timedelta(seconds=60), timedelta(seconds=5)


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
            if kept is None or kept.age > (SOONEST if again else KEPT):
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
