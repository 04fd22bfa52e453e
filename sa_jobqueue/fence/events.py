"""The events of a fenced write: what was finished, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

from ..events.event import EVENT_OF_VERB, Event, EventJob
from ..model.mapping import QueueMapping
from ..model.transitions import ERROR, NOW
from .change import Change
from .claim import FencedJobs
from .statements import Found


def written_events(
    mapping: QueueMapping, change: Change, written: Sequence[tuple[FencedJobs, Found]]
) -> Iterator[Event]:
    """Make the events of one change to one class: of the jobs that were ours, and of the others."""
    for name in (EVENT_OF_VERB[change.verb], "after_lost"):
        ours = name != "after_lost"
        jobs = tuple(
            job for part, found in written for job in _jobs(change, part, found, ours=ours)
        )
        if jobs:
            yield Event(
                name,
                change.verb,
                mapping.entity,
                jobs,
                len(jobs),
                error=change.parameters.get(ERROR),
                at=change.parameters.get(NOW),
            )


def _jobs(change: Change, part: FencedJobs, found: Found, *, ours: bool) -> Iterator[EventJob]:
    token, deletes = part.token, change.values is None
    given = dict(zip(part.identities, part.jobs, strict=True))  # a job may be given twice
    for identity, job in given.items():
        if (identity in found) is ours:
            yield EventJob(
                identity,
                None if deletes else _status(part, job),
                token.status,
                token.owner,
                tuple(token.dates),
                unmarked=token.hold is not None,
                before=token.status,
            )


def _status(part: FencedJobs, job: Any) -> str | None:
    """Return the status that an entity shows after the write; rows and fences show none."""
    mapping = part.mapping
    if part.rows or not mapping.is_queue or not isinstance(job, mapping.entity):
        return None
    status: str | None = mapping.told(instance_dict(job).get(mapping.attributes["status"]))
    return status
