"""QueueCollector: how full queues are, read from the database at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..counts import QueueStats, overview
from ..counts.count import queues_there
from ..model.keys import queues_by_name
from ..owners.alive import OwnerState
from ..queue import job_queue_of


class QueueCollector(Collector):
    """Gauges of queues; register it with a registry of prometheus_client.

    A scrape reads by indexes alone, and counts no further than ``Count`` does. What no index finds
    has no sample: see ``__queue_args__ = {"failed_index": True}``. A queue whose table is missing
    has no sample either.

    Args:
        engine: a synchronous one; each scrape takes a connection of its pool.
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """

    def __init__(self, engine: Engine, queues: Mapping[str, Any] | Iterable[Any]) -> None:
        self._engine = engine
        named = queues_by_name(queues)
        self._queues = {name: job_queue_of(queue) for name, queue in named.items()}

    def describe(self) -> Iterator[Metric]:
        """Name the gauges without a look into the database, as a registry asks for it."""
        return iter(_gauges({}))

    def collect(self) -> Iterator[Metric]:
        """Read the queues.

        Raises:
            DBAPIError: the database could not be read; the scrape fails.
        """
        with Session(self._engine) as session:
            there = queues_there(session.connection(), self._queues)
            found = overview(session, there.values())
        return iter(_gauges(dict(zip(there, found, strict=True))))


def _gauges(found: Mapping[str, QueueStats]) -> list[Metric]:
    due = _gauge("due_jobs", "Jobs that can be claimed now; counted up to 10,000.")
    oldest = _gauge("oldest_due_seconds", "Seconds since the oldest due job became due.")
    claimed = _gauge("claimed_jobs", "Jobs that are claimed; counted up to 10,000.")
    failed = _gauge("failed_jobs", "Jobs that failed; counted up to 10,000.")
    paused = _gauge("paused", "1 while the queue is paused.")
    workers = _gauge("workers", "Workers of the queue, by their state.", "state")
    for name, seen in found.items():
        due.add_metric([name], seen.due.number)
        oldest.add_metric([name], seen.oldest.total_seconds() if seen.oldest else 0)
        claimed.add_metric([name], seen.claimed.number)
        if seen.failed is not None:
            failed.add_metric([name], seen.failed.number)
        if seen.workers is not None:
            paused.add_metric([name], float(seen.paused is not None))
            states = Counter(worker.state for worker in seen.workers)
            for state in OwnerState:
                workers.add_metric([name, state.value], states[state])
    return [due, oldest, claimed, failed, paused, workers]


def _gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"jobqueue_{name}", help_, labels=["queue", *labels])
