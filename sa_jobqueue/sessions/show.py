"""Make entities show the new values after a write, or reload them at the next read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from ..model.keys import key_is_in, key_values, keys_of
from ..model.mapping import QueueMapping
from .writer import Writer


def show_values(session: Session, shown: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Let entities show the values that were just written to their rows.

    Args:
        shown: entities, each with the new values of its attributes.
    """
    for entity, values in shown:
        for key, value in values.items():
            set_committed_value(entity, key, value)
    expire_on_savepoint_rollback(session, [entity for entity, _ in shown])


def show_expired(
    session: Session,
    mapping: QueueMapping,
    entities: Iterable[Any],
    keys: Sequence[str] | None = None,
) -> None:
    """Let entities reload attributes at their next read: by default those that a verb writes."""
    own = [entity for entity in entities if entity in session]
    for entity in own:
        session.expire(entity, mapping.written_keys if keys is None else keys)
    expire_on_savepoint_rollback(session, own)


def loaded(
    writer: Writer, mapping: QueueMapping, identities: Iterable[tuple[Any, ...]]
) -> list[Any]:
    """Return the entities with these primary keys that the session has loaded."""
    key_of = mapping.mapper.identity_key_from_primary_key
    entity_of = writer.session.identity_map.get
    found = (entity_of(key_of(identity, writer.shard)) for identity in identities)
    return [entity for entity in found if entity is not None]


def expire_on_savepoint_rollback(session: Session, entities: Iterable[Any]) -> None:
    """Let entities reload if the savepoint that is open now is rolled back.

    A session expires what it flushed in a savepoint. It does not expire attributes that were
    set as committed or read in the savepoint.
    """
    if session.in_nested_transaction():
        session._register_altered(map(instance_state, entities))  # as a bulk UPDATE does


def show_deleted(session: Session, entities: Iterable[Any]) -> None:
    """Put entities whose rows were deleted into the state after session.delete() and flush()."""
    in_session = session.identity_map.contains_state
    states = [state for state in map(instance_state, entities) if in_session(state)]
    if states:
        session._remove_newly_deleted(states)  # what flush() itself calls; it has no public name


def refresh(
    writer: Writer, mapping: QueueMapping, entities: Sequence[Any], attributes: Sequence[str]
) -> None:
    """Load some attributes of entities again, by one SELECT for all of them."""
    if not attributes or not entities:
        return
    for entity in entities:
        writer.session.expire(entity, attributes)
    wanted = load_only(*(getattr(mapping.entity, key) for key in attributes))
    again = select(mapping.entity).where(key_is_in(mapping, "sa_jobqueue_keys")).options(wanted)
    writer.orm(again, {"sa_jobqueue_keys": key_values(keys_of(mapping, entities))}).unique().all()
