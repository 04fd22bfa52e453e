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

import itertools
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

# Inner: public listeners are not called for what was rolled back, nor told of statuses' meaning and
# of what a queue promises.
from sa_jobqueue.databases.clock import as_utc
from sa_jobqueue.events import Event, EventJob
from sa_jobqueue.events.listeners import add_listener, remove
from sa_jobqueue.events.notes import call_at_end_of
from sa_jobqueue.fence.claim import FencedJobs
from sa_jobqueue.model.mapping import QueueMapping, any_mapping_of
from sa_jobqueue.model.transitions import FINISHED
from sa_jobqueue.sessions.transaction_end import TransactionEnd
from sa_jobqueue.sessions.writer import Writer
from sa_jobqueue.strategies import ClaimSpec
from sa_jobqueue.verbs import claim as claim_verb


@dataclass(frozen=True)
class OrderedJob(EventJob):
    """A claimed job.

    Attributes:
        order: its values in claim order; None: the order is the queue's own.
        keys: its serial key, if the queue has a limit.
    """

    order: tuple[Any, ...] | None = None
    keys: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class OrderedClaim(Event):
    """A claim, with what the queue promises of it.

    Attributes:
        strict: the claims go in exact claim order.
        limits: the names of the serial key's columns, how many of its jobs may be claimed at a
            time, and whether they are claimed in claim order.
    """

    strict: bool = False
    limits: tuple[tuple[tuple[str, ...], int, bool], ...] = ()


_plain_event = claim_verb.claim_event


def ordered_event(spec: ClaimSpec, parts: Sequence[FencedJobs]) -> Event:
    """Make the event of a claim that tells of orders and limits."""
    event, limit = _plain_event(spec, parts), spec.key_limit
    shown = [_shown(spec.mapping, part, job) for part in parts for job in part.jobs]
    names = spec.mapping.order_attributes if spec.own_order else ()
    jobs = []
    for job, values in zip(event.jobs, shown, strict=True):
        order = tuple(map(values, names))
        known = bool(order) and all(isinstance(value, int | datetime) for value in order)
        keys = () if limit is None else (tuple(map(values, limit.names)),)
        jobs.append(OrderedJob(**vars(job), order=order if known else None, keys=keys))
    limits = () if limit is None else ((limit.names, limit.most, limit.serial),)
    return OrderedClaim(**{**vars(event), "jobs": tuple(jobs)}, strict=spec.strict, limits=limits)


claim_verb.claim_event = ordered_event


def _shown(mapping: QueueMapping, part: FencedJobs, job: Any) -> Callable[[str], Any]:
    """Return what tells the values of a claimed row or entity, by the names of attributes."""

    def value(name: str) -> Any:
        found = (
            job._mapping[mapping.mapper.columns[name].key]
            if part.rows
            else instance_dict(job).get(name)
        )
        return as_utc(found) if isinstance(found, datetime) else found

    return value


_numbers = itertools.count(1)
_process = secrets.token_hex(6)


class Ledger:
    """Record the events of classes and queues in a file, from ``listen()`` to the end."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        self._targets: list[Any] = []

    def listen(self, *targets: Any) -> Ledger:
        """Record the events of mapped classes, or of JobQueues, from now on."""
        for target in targets:
            add_listener(target, self.note, None)
            self._targets.append(target)
        return self

    def close(self) -> None:
        """Stop recording; what ends later has no end."""
        while self._targets:
            remove(self._targets.pop(), None, self.note)
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, event: Event, writer: Writer | None) -> None:
        """Write the line of an event, and at the end of its transaction that of its end."""
        mapping = any_mapping_of(event.entity)
        number = f"{_process}-{os.getpid()}-{next(_numbers)}"  # a forked process has our `_process`
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
            strict=getattr(event, "strict", None) or None,
            limits=getattr(event, "limits", None) or None,
        )

        def note_end(end: TransactionEnd) -> None:
            self._write(of=number, end=end.value, t=datetime.now(UTC))

        if writer is None:
            note_end(TransactionEnd.COMMITTED)
        else:
            call_at_end_of(writer, note_end, of_transaction=event.name == "after_lost")

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
    }
    if isinstance(job, OrderedJob):
        written |= {"order": job.order, "keys": job.keys or None}
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
