"""The site: what all pages share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from ..model.queue_name import queues_by_name
from ..overview import QueueOverview, overview
from ..overview.queue import job_queue_of
from ..overview.schema import has_table
from ..queue import JobQueue
from ..steering import Steering
from .reading import TIME_LIMIT, reading
from .samples import Samples


@dataclass(frozen=True)
class Site:
    """An engine, the queues that may be seen, and what was sampled of them."""

    engine: Engine
    queues: Mapping[str, JobQueue[Any]]
    samples: Samples = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", Samples(self.overview))

    @classmethod
    def of(cls, engine: Engine, queues: Mapping[str, Any] | Iterable[Any]) -> Site:
        """Make a site.

        Raises:
            ArgumentError: something is no queue, or two have one name.
        """
        named = queues_by_name(queues)
        return cls(engine, {name: job_queue_of(queue) for name, queue in named.items()})

    def overview(self, *names: str) -> dict[str, QueueOverview]:
        """Describe the queues whose tables are there, or those of them that are named."""
        wanted = names or self.queues
        with reading(self.engine) as session:
            connection = session.connection()
            there = {
                name: queue
                for name, queue in self.queues.items()
                if name in wanted and has_table(connection, queue.mapping.table)
            }
            return dict(zip(there, overview(session, there.values()), strict=True))

    def steering(self, name: str) -> Steering:
        """Return what changes the jobs of a queue."""
        return Steering(self.engine, self.queues[name], TIME_LIMIT)
