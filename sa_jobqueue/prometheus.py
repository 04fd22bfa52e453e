"""Metrics for Prometheus; it needs the extra ``prometheus``.

::

    count_events([outbox, reports])  # what this process does

Every process counts what it does itself; ``sa-jobqueue metrics`` serves these counts, and the
queues' depth and age, which it reads from the database at each scrape. In a program of your own::

    REGISTRY.register(QueueCollector(engine, [outbox, reports]))
    start_http_server(9100)

The only labels are the name of the queue, the event and the state of workers; and the name of the
database, if there are several: ``QueueCollector({"eu": engine_a, "us": engine_b}, [outbox])``.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter as Counted
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from .counts import QueueStats
from .counts.reading import look
from .errors import ArgumentError
from .events import Event
from .events.listeners import Remembered, observe
from .model.columns import first_line
from .model.keys import queue_name, queues_by_name
from .owners.alive import OwnerState
from .queue import job_queue_of

__all__ = ["QueueCollector", "count_events"]

log = logging.getLogger("sa_jobqueue.prometheus")

#: Names the folder where processes count; the name is that of prometheus_client.
COUNTS = "PROMETHEUS_MULTIPROC_DIR"

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


class ProcessCounts(MultiProcessCollector):
    """What other processes count, in the folder that PROMETHEUS_MULTIPROC_DIR names."""

    def collect(self) -> Iterable[Metric]:
        """Leave out files that are empty: their processes have just made them, or died doing so."""
        files = [str(file) for file in Path(self._path).glob("*.db") if file.stat().st_size]
        return self.merge(files)  # type: ignore[no-any-return, no-untyped-call]  # theirs


def registry_of(
    engine: Engine | Mapping[str, Engine], queues: Mapping[str, Any]
) -> CollectorRegistry:
    """Return a registry with gauges of queues, and with what other processes count.

    Args:
        engine: as for :class:`QueueCollector`.
        queues: the label is a queue's name, as count_events has it, and the given one if several
            have the same name.

    Raises:
        ArgumentError: PROMETHEUS_MULTIPROC_DIR names no folder.
    """
    shared = Counted(map(queue_name, queues.values()))
    labelled = {
        given if shared[queue_name(queue)] > 1 else queue_name(queue): queue
        for given, queue in queues.items()
    }
    registry = CollectorRegistry()
    registry.register(QueueCollector(engine, labelled))
    if COUNTS in os.environ:
        try:
            ProcessCounts(registry)  # type: ignore[no-untyped-call]  # theirs
        except ValueError as error:
            raise ArgumentError(f"{COUNTS}={os.environ[COUNTS]} is no folder") from error
    return registry


class QueueCollector(Collector):
    """Gauges of queues; register it with a registry of prometheus_client.

    A scrape reads by indexes alone, and counts no further than ``Count`` does. What no index finds
    has no sample: see ``__queue_args__ = {"failed_index": True}``. A queue whose table is missing
    or locked has no sample either: each statement may take five seconds.

    Args:
        engine: a synchronous one; each scrape takes a connection of its pool. Or several, by the
            names of their databases, which are then a label.
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.

    Raises:
        ArgumentError: something is no queue, or two have one name.
    """

    def __init__(
        self, engine: Engine | Mapping[str, Engine], queues: Mapping[str, Any] | Iterable[Any]
    ) -> None:
        self._engines = engine if isinstance(engine, Mapping) else {None: engine}
        named = queues_by_name(queues)
        self._queues = {name: job_queue_of(queue) for name, queue in named.items()}

    def describe(self) -> Iterator[Metric]:
        """Name the gauges without a look into the database, as a registry asks for it."""
        return iter(self._gauges({}))

    def collect(self) -> Iterator[Metric]:
        """Read the queues; of several databases one that is away leaves the others readable.

        Raises:
            DBAPIError: the only database could not be read; the scrape fails.
        """
        seen: dict[tuple[str, ...], QueueStats] = {}
        for database, engine in self._engines.items():
            place = () if database is None else (database,)
            try:
                found: Mapping[str, Any] = look(engine, self._queues)
            except DBAPIError as error:
                if database is None:
                    raise
                found = {"": error}
            for name, it in found.items():
                if isinstance(it, QueueStats):
                    seen[*place, name] = it
                elif it is not None:
                    which = " ".join(filter(None, (*place, name)))
                    log.warning("%s has no metrics now: %s", which, first_line(it.orig))
        return iter(self._gauges(seen))

    def _gauges(self, found: Mapping[tuple[str, ...], QueueStats]) -> list[Metric]:
        place = [] if None in self._engines else ["database"]

        def gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"jobqueue_{name}", help_, labels=[*place, "queue", *labels])

        due = gauge("due_jobs", "Jobs that can be claimed now; counted up to 10,000.")
        behind = gauge("behind_jobs", "Due jobs behind others of their key; counted up to 10,000.")
        oldest = gauge("oldest_due_seconds", "Seconds since the oldest due job became due.")
        claimed = gauge("claimed_jobs", "Jobs that are claimed; counted up to 10,000.")
        failed = gauge("failed_jobs", "Jobs that failed; counted up to 10,000.")
        paused = gauge("paused", "1 while the queue is paused.")
        workers = gauge("workers", "Workers of the queue, by their state.", "state")
        for labels, seen in found.items():
            due.add_metric(labels, seen.due.number)
            if seen.behind is not None:
                behind.add_metric(labels, seen.behind.number)
            oldest.add_metric(labels, seen.oldest.total_seconds() if seen.oldest else 0)
            claimed.add_metric(labels, seen.claimed.number)
            if seen.failed is not None:
                failed.add_metric(labels, seen.failed.number)
            if seen.workers is not None:
                paused.add_metric(labels, float(seen.paused is not None))
                states = [worker.state for worker in seen.workers]
                for state in OwnerState:
                    workers.add_metric([*labels, state.value], states.count(state))
        return [due, behind, oldest, claimed, failed, paused, workers]
