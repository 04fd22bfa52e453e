"""The ledger: a file with a line for each event, and a line for the end of its transaction.

::

    with Ledger("history.jsonl").listen(Email):
        worker.run()

The line of an event is written within the verb's transaction, before its COMMIT, and the line of
its end after it. So a process that is killed in between leaves an event without an end: whether
it was committed is unknown, and the checker takes it for both.

Times are UTC with microseconds, so their texts sort as they do.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Inner: public listeners are not called for what was rolled back, nor told of statuses' meaning.
from sa_jobqueue.dialects.clock import as_utc
from sa_jobqueue.events import Event, EventJob
from sa_jobqueue.events.event import Recorder
from sa_jobqueue.events.listeners import add_listener, remove_listener
from sa_jobqueue.model.mapping import QueueMapping, any_mapping_of
from sa_jobqueue.model.transitions import FINISHED


class Ledger(Recorder):
    """Record the events of classes and queues in a file, from ``listen()`` to the end."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        self._targets: list[Any] = []

    def listen(self, *targets: Any) -> Ledger:
        """Record the events of mapped classes, or of JobQueues, from now on."""
        for target in targets:
            add_listener(target, self, None)
            self._targets.append(target)
        return self

    def close(self) -> None:
        """Stop recording; what ends later has no end."""
        while self._targets:
            remove_listener(self._targets.pop(), self, None)
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def noted(self, event: Event, number: str, writer: object) -> None:
        """Write the line of an event."""
        mapping, promise = any_mapping_of(event.entity), event.promise
        self._write(
            n=number,
            t=datetime.now(UTC),
            event=event.name,
            verb=event.verb,
            table=mapping.table.fullname,
            jobs=[_job(mapping, job) for job in event.jobs],
            count=event.count,
            error=event.error,
            at=event.at,
            strict=(promise and promise.strict) or None,
            limits=(promise and promise.limits) or None,
        )

    def ended(self, number: str, end: Any) -> None:
        """Write the line of its transaction's end."""
        self._write(of=number, end=end.value, t=datetime.now(UTC))

    def _write(self, **line: Any) -> None:
        if self._file >= 0:  # one write to the file's end, as several processes may share it
            text = json.dumps(_known(line), default=_text, separators=(",", ":"))
            os.write(self._file, f"{text}\n".encode())


def _job(mapping: QueueMapping, job: EventJob) -> dict[str, Any]:
    written: dict[str, Any] = {
        "key": job.key,
        "status": job.status,
        "final": job.status and job.status in map(mapping.word, FINISHED),
        "fence": job.fence_status,
        "owner": job.owner,
        "attempts": job.attempts,
        "unmarked": job.unmarked or None,
        "dates": job.owner_dates or None,
        "order": job.order,
        "keys": job.serial_keys or None,
    }
    if job.order is not None and mapping.has("run_at"):
        run_at = mapping.order_attributes.index(mapping.attributes["run_at"])
        written["due"] = job.order[run_at]
    return _known(written)


def _known(written: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if value is not None}


def _text(value: Any) -> str:
    """Write what JSON does not know: times as UTC, everything else as its text."""
    if isinstance(value, datetime):
        return f"{as_utc(value).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return str(value)
