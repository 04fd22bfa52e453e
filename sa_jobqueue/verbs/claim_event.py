"""The event of a claim: its jobs with their fences, and what the queue promises of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

from ..dialects.clock import as_utc
from ..events.event import Event, EventJob, Promise
from ..fence.claim import FencedJobs
from ..strategies import ClaimSpec
from ..strategies.key_limits import KeyLimit


def claim_event(spec: ClaimSpec, parts: Sequence[FencedJobs]) -> Event:
    """Make the event of a claim."""
    jobs = tuple(job for part in parts for job in _jobs(spec, part))
    promise = None
    if spec.strict or spec.limits:
        limits = [(_names(limit), limit.most, limit.serial) for limit in spec.limits]
        promise = Promise(spec.strict, tuple(limits))
    return Event(
        "after_claim",
        "claim",
        spec.mapping.entity,
        jobs,
        len(jobs),
        at=jobs[-1].owner_date if jobs else None,
        promise=promise,
    )


def _jobs(spec: ClaimSpec, part: FencedJobs) -> Iterator[EventJob]:
    mapping, token = spec.mapping, part.token
    ordered = spec.strict or any(limit.serial for limit in spec.limits)
    ordered = ordered and spec.own_order and mapping.args.order_by is None
    for identity, job in zip(part.identities, part.jobs, strict=True):
        attempts = order = None
        if mapping.has("attempts"):
            (attempts,) = _values(part, job, (mapping.attributes["attempts"],))
            if attempts is not None and token.hold is not None:
                attempts += 1  # an unmarked claim has counted nothing
        if ordered:
            order = _values(part, job, mapping.order_attributes)
            if not all(isinstance(value, int | datetime) for value in order):
                order = None  # Python cannot compare it as the database does
        yield EventJob(
            identity,
            token.status,
            token.status,
            token.owner,
            tuple(token.dates),
            attempts,
            order,
            tuple(_values(part, job, _names(limit)) for limit in spec.limits),
            token.hold is not None,
            spec.ready,
        )


def _names(limit: KeyLimit) -> tuple[str, ...]:
    return tuple(column.key for column in limit.columns)


def _values(part: FencedJobs, job: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return what a claimed row or entity shows for some attributes."""
    mapping = part.mapping
    if part.rows:
        columns: list[Any] = list(mapping.table.c)
        shown = [job[columns.index(mapping.mapper.columns[name])] for name in names]
    else:
        shown = [instance_dict(job).get(name) for name in names]
    return tuple(as_utc(value) if isinstance(value, datetime) else value for value in shown)
