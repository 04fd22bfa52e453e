"""count_events(): what the verbs of this process do, counted after their commits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from ..events import Event
from ..events.listeners import Remembered, observe

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
