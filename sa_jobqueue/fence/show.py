"""What entities show, and what listeners hear, after a write behind their fences.

Plain rows and fences show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.orm.attributes import instance_dict

from ..dialects.clock import as_utc
from ..events.event import EVENT_OF_VERB, Event, EventJob
from ..model.mapping import QueueMapping
from ..model.transitions import ERROR, NOW, ClaimedValues
from ..sessions.show import expire, show_deleted, show_expired, show_values
from ..sessions.writer import Writer
from .claim import FencedJobs
from .statements import FenceKind, Found, fenced_statements, own_parameter
from .token import Change, Token


def show_written(
    writer: Writer,
    mapping: QueueMapping,
    change: Change,
    written: Sequence[tuple[FencedJobs, Found]],
) -> None:
    """Let the entities of a batch show what was written.

    Args:
        written: each part with the keys and new values of its rows that were ours.
    """
    values_of = change.values
    own = {
        mapping.mapper.get_property_by_column(column).key: change.parameters[own_parameter(index)]
        for index, column in enumerate(change.own)
    }
    for part, found in written:
        if part.rows:
            continue
        entities = [
            (job, found[identity])
            for job, identity in zip(part.jobs, part.identities, strict=True)
            if isinstance(job, mapping.entity) and identity in found
        ]
        if not entities:
            continue
        if values_of is None:
            show_deleted(writer.session, [entity for entity, _ in entities])
            continue
        attributes = _attributes(mapping, writer, values_of, part.token)
        if not attributes and not own:
            continue
        # A new round has taken these, and nothing was written to them.
        moved = [entity for entity, values in entities if attributes and not values]
        show_expired(writer.session, mapping, moved)
        shown = [
            (entity, {**_shown(mapping, attributes, values), **own})
            for entity, values in entities
            if values or not attributes
        ]
        show_values(writer.session, shown)
        if mapping.onupdate_keys:
            expire(writer.session, [entity for entity, _ in entities], mapping.onupdate_keys)


def _attributes(
    mapping: QueueMapping, writer: Writer, values_of: ClaimedValues, token: Token
) -> list[str | None]:
    """List the attributes of the columns that a change writes; None where it has no attribute."""
    if not mapping.is_queue:
        return [mapping.attributes["round"]] if mapping.has("round") else []
    keys = {mapping.column(role).key: key for role, key in mapping.attributes.items()}
    columns = fenced_statements(mapping, writer, values_of, FenceKind.of(token)).columns
    return [keys.get(column.key) for column in columns]


def _shown(mapping: QueueMapping, attributes: Sequence[str | None], values: Sequence[Any]) -> Any:
    """Return new values by the attributes that show them, times as UTC."""
    shown = {key: value for key, value in zip(attributes, values, strict=False) if key is not None}
    for key in mapping.time_keys:
        if shown.get(key) is not None:
            shown[key] = as_utc(shown[key])
    return shown


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
