"""count_events(): what the verbs of this process do, counted after their commits."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..events import Event, listen
from ..model.queue_name import queues_by_name
from .names import QUEUE, metric

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

#: A handler that began, and whose end nobody told: so many are remembered.
REMEMBERED = 10_000


def count_events(
    queues: Mapping[str, Any] | Iterable[Any], *, registry: CollectorRegistry = REGISTRY
) -> None:
    """Count what this process does with queues, from now on: once, where the process starts.

    ``jobqueue_events_total`` counts jobs by event, ``jobqueue_job_seconds`` is a histogram of the
    time from the start of a handler to the commit of its finish. ``jobqueue_findings`` is the
    number of the doctor's findings when a worker of this process asked it last. New jobs are
    counted however the ORM inserts them, and so for all queues of their class together.

    Args:
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
        registry: where the metrics are registered.

    Raises:
        ArgumentError: something is no queue, or two have one name.
        ValueError: the registry has these metrics already.
    """
    counter = Counter(
        metric("events"),
        "Jobs, by what happened to them.",
        [QUEUE, "event"],
        registry=registry,
    )
    seconds = Histogram(
        metric("job_seconds"),
        "The time from the start of a handler to the commit of its finish.",
        [QUEUE],
        registry=registry,
    )
    findings = Gauge(
        metric("findings"),
        "Findings of the doctor when a worker last called it.",
        [QUEUE],
        registry=registry,
        multiprocess_mode="mostrecent",
    )
    classes: set[type[Any]] = set()
    for name, queue in queues_by_name(queues).items():
        _Counts(name, counter, seconds).listen(queue, classes)
        listen(queue, "after_examine", partial(_note_findings, findings.labels(name)))


def _note_findings(gauge: Gauge, event: Event) -> None:
    gauge.set(event.count or 0)


class _Counts:
    """The counters of one queue."""

    def __init__(self, name: str, counter: Counter, seconds: Histogram) -> None:
        self._counted = {event: counter.labels(name, word) for event, word in COUNTED.items()}
        self._seconds = seconds.labels(name)
        self._began: OrderedDict[Any, float] = OrderedDict()
        self._lock = Lock()

    def listen(self, queue: Any, classes: set[type[Any]]) -> None:
        """Listen to a queue; to new jobs of its class only if nobody does."""
        entity = getattr(queue, "entity", queue)
        for event in COUNTED:
            if event != "after_enqueue":
                listen(queue, event, self._count)
            elif entity not in classes:
                classes.add(entity)
                listen(entity, event, self._count)
        listen(queue, "after_start", self._note_start)
        for event in ("after_finish", "after_fail"):
            listen(queue, event, self._note_end)
        for event in ("after_release", "after_cancel", "after_lost"):
            listen(queue, event, partial(self._note_end, counted=False))

    def _count(self, event: Event) -> None:
        jobs = len(event.jobs) if event.count is None else event.count
        self._counted[event.name].inc(jobs if event.name != "after_lock_lost" else 1)

    def _note_start(self, event: Event) -> None:
        with self._lock:
            for job in event.jobs:
                self._began[job.key] = time.monotonic()
                if len(self._began) > REMEMBERED:
                    self._began.popitem(last=False)

    def _note_end(self, event: Event, *, counted: bool = True) -> None:
        now = time.monotonic()
        for job in event.jobs:
            with self._lock:
                began = self._began.pop(job.key, None)
            if began is not None and counted:
                self._seconds.observe(now - began)
