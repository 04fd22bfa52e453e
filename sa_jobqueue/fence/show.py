"""What entities show, and what listeners hear, after a write behind their fences.

Plain rows and fences show nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

from ..dialects.clock import as_utc
from ..events.event import EVENT_OF_VERB, Event, EventJob
from ..model.mapping import QueueMapping
from ..model.transitions import ERROR, NOW
from ..sessions.show import show_deleted, show_expired, show_values
from ..sessions.writer import Writer
from .claim import FencedJobs
from .statements import own_parameter
from .token import Change, Identity

#: The rows that were still ours, with their new values by attributes, as far as entities show
#: them. None: a new round has taken the row, and nothing was written to it.
Found = dict[Identity, Mapping[str, Any] | None]

#: The new values of a row that no entity shows.
UNSHOWN: Mapping[str, Any] = MappingProxyType({})


def shown_values(
    mapping: QueueMapping, attributes: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Found:
    """Return what rows have become, times as UTC.

    Args:
        rows: each has its key, and then the values of the attributes.
    """
    found: Found = {}
    width = len(mapping.keys)
    for row in rows:
        shown = dict(zip(attributes, row[width:], strict=True))
        for key in mapping.time_keys:
            if shown.get(key) is not None:
                shown[key] = as_utc(shown[key])
        found[tuple(row[:width])] = shown
    return found


def show_written(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    written: Sequence[tuple[FencedJobs, Found]],
) -> None:
    """Let the entities of a batch show what was written.

    Args:
        written: each part with its rows that were ours.
    """
    entities = [
        (job, found[identity])
        for part, found in written
        if not part.rows
        for job, identity in zip(part.jobs, part.identities, strict=True)
        if identity in found and isinstance(job, mapping.entity)
    ]
    if not entities:
        return
    session = writer.session
    if change.values is None:
        show_deleted(session, [entity for entity, _ in entities])
        return
    own = {
        mapping.mapper.get_property_by_column(column).key: change.parameters[own_parameter(index)]
        for index, column in enumerate(change.own)
    }
    show_values(session, [(entity, {**new, **own}) for entity, new in entities if new is not None])
    if moved := [entity for entity, new in entities if new is None]:
        show_expired(session, mapping, moved)
    if mapping.onupdate_keys:
        written_to = [entity for entity, _ in entities]
        show_expired(session, mapping, written_to, mapping.onupdate_keys)


def written_events(
    mapping: QueueMapping, change: Change, written: Sequence[tuple[FencedJobs, Found]]
) -> Iterator[Event]:
    """Make the events of one change to one class: of the jobs that were ours, and of the others."""
    jobs: dict[str, list[EventJob]] = {EVENT_OF_VERB[change.verb]: [], "after_lost": []}
    ours, lost = jobs.values()
    for part, found in written:
        given = dict(zip(part.identities, part.jobs, strict=True))  # a job may be given twice
        for identity, job in given.items():
            shows = change.values is not None and mapping.is_queue
            told = _event_job(mapping, part, identity, job if shows else None)
            (ours if identity in found else lost).append(told)
    error, at = change.parameters.get(ERROR), change.parameters.get(NOW)
    for name, told_jobs in jobs.items():
        if told_jobs:
            number = len(told_jobs)
            yield Event(
                name, change.verb, mapping.entity, tuple(told_jobs), number, error=error, at=at
            )


def _event_job(mapping: QueueMapping, part: FencedJobs, identity: Identity, job: Any) -> EventJob:
    """Make the job of an event; an entity tells its status, which rows and fences do not."""
    token, status = part.token, None
    if not part.rows and isinstance(job, mapping.entity):
        status = mapping.told(instance_dict(job).get(mapping.attributes["status"]))
    return EventJob(
        identity,
        status,
        token.status,
        token.owner,
        tuple(token.dates),
        unmarked=token.hold is not None,
        before=token.status,
    )
