"""What entities show after a write: the new values, or a reload at the next look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from ..model.keys import key_is_in, key_values, keys_of
from ..model.mapping import QueueMapping
from .undo import undo_on_savepoint_rollback
from .writer import Writer


def show_values(session: Session, shown: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Let entities show the values that were just written to their rows.

    Args:
        shown: entities, each with the new values of its attributes.
    """
    for entity, values in shown:
        for key, value in values.items():
            set_committed_value(entity, key, value)
    if session.in_nested_transaction():
        keys = {key for _, values in shown for key in values}
        expire_on_savepoint_rollback(session, [entity for entity, _ in shown], list(keys))


def show_expired(session: Session, mapping: QueueMapping, entities: Iterable[Any]) -> None:
    """Have entities read what a verb writes again when they are next looked at.

    They do so once more if the savepoint that is open now is rolled back.
    """
    keys = [*mapping.attributes.values(), *mapping.onupdate_keys]
    own = [entity for entity in entities if entity in session]
    for entity in own:
        session.expire(entity, keys)
    if own:
        expire_on_savepoint_rollback(session, own, keys)


def loaded(
    session: Session, mapping: QueueMapping, identities: Iterable[tuple[Any, ...]]
) -> list[Any]:
    """Return the entities with these primary keys that the session has loaded."""
    key_of, entity_of = mapping.mapper.identity_key_from_primary_key, session.identity_map.get
    found = (entity_of(key_of(identity)) for identity in identities)
    return [entity for entity in found if entity is not None]


def expire_on_savepoint_rollback(
    session: Session, entities: Sequence[Any], keys: list[str]
) -> None:
    """Have entities read attributes again if the savepoint that is open now is rolled back.

    A session expires what it flushed in a savepoint, but neither what was set as
    committed in it nor what was read in it.
    """

    def expire() -> None:
        for entity in entities:
            if entity in session:
                session.expire(entity, keys)

    undo_on_savepoint_rollback(session, expire)


def show_deleted(session: Session, entities: Iterable[Any]) -> None:
    """Leave entities whose rows were deleted as session.delete() and flush() would."""
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
