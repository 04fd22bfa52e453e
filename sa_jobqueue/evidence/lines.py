"""How an event is written to a line of JSON: short names, and no values that are not known.

::

    {"n": "5f..-811-7", "t": "2026-05-01T14:03:01.2..Z", "event": "after_claim", "verb": "claim",
     "table": "email", "jobs": [{"key": [7], "fence": "claimed", "owner": "w1", "dates": [..]}]}
    {"of": "5f..-811-7", "end": "committed", "t": "2026-05-01T14:03:01.3..Z"}

Times are UTC with microseconds, so their texts sort as they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ..dialects.clock import as_utc
from ..events.event import Event, EventJob
from ..model.mapping import QueueMapping, any_mapping_of
from ..model.transitions import FINISHED
from ..sessions.transaction_end import TransactionEnd


def event_line(event: Event, number: str) -> str:
    """Write an event, by the name that its end will refer to."""
    mapping = any_mapping_of(event.entity)
    promise = event.promise
    written = {
        "n": number,
        "t": _text(datetime.now(UTC)),
        "event": event.name,
        "verb": event.verb,
        "table": mapping.table.fullname,
        "jobs": [dict(_job(mapping, job)) for job in event.jobs],
        "count": event.count,
        "error": event.error,
        "at": event.at,
        "strict": True if promise is not None and promise.strict else None,
        "limits": None if promise is None else promise.limits or None,
    }
    return _line({name: value for name, value in written.items() if value is not None})


def end_line(number: str, end: TransactionEnd) -> str:
    """Write how the transaction of an event has ended."""
    return _line({"of": number, "end": end.value, "t": _text(datetime.now(UTC))})


def key_text(key: tuple[Any, ...]) -> str:
    """Write a primary key as the lines do, such as ``[7]``."""
    return json.dumps(key, default=_text)


def _job(mapping: QueueMapping, job: EventJob) -> Iterator[tuple[str, Any]]:
    """Yield what is known of a job."""
    yield "key", job.key
    if job.status is not None:
        yield "status", job.status
        yield "final", job.status in map(mapping.word, FINISHED)
    fence = {"fence": job.fence_status, "owner": job.owner, "attempts": job.attempts}
    yield from ((name, value) for name, value in fence.items() if value is not None)
    if job.unmarked:
        yield "unmarked", True
    if job.owner_dates:
        yield "dates", job.owner_dates
    if job.order is not None:
        yield "order", job.order
        if mapping.has("run_at"):
            index = mapping.order_attributes.index(mapping.attributes["run_at"])
            yield "due", job.order[index]
    if job.serial_keys:
        yield "keys", job.serial_keys


def _line(written: dict[str, Any]) -> str:
    return json.dumps(written, default=_text, separators=(",", ":")) + "\n"


def _text(value: Any) -> str:
    """Write what JSON does not know: times as UTC, everything else as its text."""
    if isinstance(value, datetime):
        moment = as_utc(value).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    return str(value)
