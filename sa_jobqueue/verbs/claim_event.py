"""The event of a claim: its jobs with their fences, and what the queue promises of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

from ..dialects.clock import as_utc
from ..events.event import Event, EventJob, Promise
from ..fence.claim import FencedJobs
from ..model.mapping import QueueMapping
from ..strategies import ClaimSpec


def claim_event(spec: ClaimSpec, parts: Sequence[FencedJobs]) -> Event:
    """Make the event of a claim."""
    jobs = tuple(job for part in parts for job in _jobs(spec, part))
    return Event(
        "after_claim",
        "claim",
        spec.mapping.entity,
        jobs,
        len(jobs),
        at=jobs[-1].owner_date if jobs else None,
        promise=_promise(spec),
    )


def _promise(spec: ClaimSpec) -> Promise | None:
    if not spec.strict and not spec.limits:
        return None
    limits = tuple(
        (tuple(column.key for column in limit.columns), limit.most, limit.serial)
        for limit in spec.limits
    )
    return Promise(spec.strict, limits)


def _jobs(spec: ClaimSpec, part: FencedJobs) -> Iterator[EventJob]:
    mapping, token = spec.mapping, part.token
    for identity, job in zip(part.identities, part.jobs, strict=True):
        yield EventJob(
            identity,
            token.status,
            token.status,
            token.owner,
            tuple(token.dates),
            _attempts(mapping, part, job),
            _order(spec, part, job),
            tuple(
                tuple(_value(mapping, part, job, column.key) for column in limit.columns)
                for limit in spec.limits
            ),
            token.hold is not None,
            spec.ready,
        )


def _attempts(mapping: QueueMapping, part: FencedJobs, job: Any) -> int | None:
    if not mapping.has("attempts"):
        return None
    attempts: int | None = _value(mapping, part, job, mapping.attributes["attempts"])
    if attempts is None:
        return None
    return attempts + (part.token.hold is not None)  # an unmarked claim has counted nothing


def _order(spec: ClaimSpec, part: FencedJobs, job: Any) -> tuple[Any, ...] | None:
    """Return the values of the mixins' claim order, if it is promised and Python can compare it."""
    promised = spec.strict or any(limit.serial for limit in spec.limits)
    if not promised or not spec.own_order or spec.mapping.args.order_by is not None:
        return None
    values = tuple(_value(spec.mapping, part, job, name) for name in spec.mapping.order_attributes)
    return values if all(isinstance(value, int | datetime) for value in values) else None


def _value(mapping: QueueMapping, part: FencedJobs, job: Any, name: str) -> Any:
    """Return what a claimed row or entity shows for an attribute."""
    if not part.rows:
        value = instance_dict(job).get(name)
    else:
        columns: list[Any] = list(mapping.table.c)
        value = job[columns.index(mapping.mapper.columns[name])]
    return as_utc(value) if isinstance(value, datetime) else value
