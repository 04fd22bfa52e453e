"""The site: what all pages share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Engine

from ..doctor import Report, examine
from ..errors import ArgumentError
from ..model.queue_name import queue_name, queues_by_name
from ..overview import QueueOverview, overview
from ..overview.queue import job_queue_of, queues_there
from ..queue import JobQueue
from ..steering import Steering
from .reading import TIME_LIMIT, reading, reading_again
from .reports import Reports
from .samples import Samples


@dataclass(eq=False)
class Site:
    """An engine, the queues that may be seen, and what was sampled of them."""

    engine: Engine
    queues: Mapping[str, JobQueue[Any]]

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
    def reports(self) -> Reports:
        """What the doctor found in the last minute."""
        return Reports(self._examine)

    @cached_property
    def names_of(self) -> dict[str, list[str]]:
        """The names on the site of the queues that workers and schedules call by one name."""
        found: dict[str, list[str]] = {}
        for name, queue in self.queues.items():
            found.setdefault(queue_name(queue), []).append(name)
        return found

    def overview(self, *names: str) -> dict[str, QueueOverview]:
        """Describe the queues whose tables are there, or those of them that are named."""
        wanted = names or self.queues
        with reading(self.engine) as session:
            asked = {name: self.queues[name] for name in self.queues if name in wanted}
            there = queues_there(session.connection(), asked)
            return dict(zip(there, overview(session, there.values()), strict=True))

    def _examine(self, name: str) -> Report:
        with reading_again(self.engine) as session:
            return examine(session, self.queues[name], run=False)

    def steering(self, name: str) -> Steering:
        """Return what changes the jobs of a queue."""
        return Steering(self.engine, self.queues[name], TIME_LIMIT)
