"""Metrics for Prometheus; it needs the extra ``prometheus``.

::

    count_events([outbox, reports])  # what this process does

Every process counts what it does itself; ``sa-jobqueue metrics`` serves these counts, and the
queues' depth and age, which it reads from the database at each scrape. In a program of your own::

    REGISTRY.register(QueueCollector(engine, [outbox, reports]))
    start_http_server(9100)

The only labels are the name of the queue, the event and the state of workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from .counts import QueueStats, overview
from .counts.count import queues_there
from .events import Event
from .events.listeners import Remembered, observe
from .model.keys import queues_by_name
from .owners.alive import OwnerState
from .queue import job_queue_of

__all__ = ["QueueCollector", "count_events"]

#: The value of the label ``event`` for each event of the seam.
COUNTED = {
    "after_enqueue": "enqueued",
    "after_claim": "claimed",
    "after_finish": "finished",
    "after_fail": "failed",
    "after_release": "released",
    "after_cancel": "cancelled",
    "after_lost": "lost",
    "after_reap": "reaped",
    "after_lock_lost": "lock_lost",
}


def count_events(
    queues: Mapping[str, Any] | Iterable[Any], *, registry: CollectorRegistry = REGISTRY
) -> None:
    """Count what this process does with queues, from now on: once, where the process starts.

    ``jobqueue_events_total`` counts jobs by event, ``jobqueue_job_seconds`` is a histogram of the
    time from the start of a handler to the commit of its finish. New jobs are
    counted however the ORM inserts them, and so for all queues of their class together.

    Args:
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
        registry: where the metrics are registered.

    Raises:
        ArgumentError: something is no queue, or two have one name.
        ValueError: the registry has these metrics already.
    """
    counter = Counter(
        "jobqueue_events",
        "Jobs, by what happened to them.",
        ["queue", "event"],
        registry=registry,
    )
    seconds = Histogram(
        "jobqueue_job_seconds",
        "The time from the start of a handler to the commit of its finish.",
        ["queue"],
        registry=registry,
    )

    def listeners(name: str) -> dict[str, Any]:
        began: Remembered[float] = Remembered()
        counted = {event: counter.labels(name, word) for event, word in COUNTED.items()}
        handled = seconds.labels(name)

        def count(event: Event) -> None:
            counted[event.name].inc(1 if event.name == "after_lock_lost" else event.number)
            for started in filter(None, [began.forget(job.key) for job in event.jobs]):
                if event.name in ("after_finish", "after_fail"):
                    handled.observe(time.monotonic() - started)

        def note_start(event: Event) -> None:
            for job in event.jobs:
                began.remember(job.key, time.monotonic())

        return {**dict.fromkeys(COUNTED, count), "after_start": note_start}

    observe(queues, listeners)


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
            states = [worker.state for worker in seen.workers]
            for state in OwnerState:
                workers.add_metric([name, state.value], states.count(state))
    return [due, oldest, claimed, failed, paused, workers]


def _gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"jobqueue_{name}", help_, labels=["queue", *labels])
