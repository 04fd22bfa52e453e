"""What entities show after a write: the new values, or a reload at the next look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect as sa_inspect
from sqlalchemy import select
from sqlalchemy.orm import Session, load_only
from sqlalchemy.orm.attributes import set_committed_value

from ..model.keys import key_is_in, key_values, keys_of
from ..model.mapping import QueueMapping
from .undo import undo_on_savepoint_rollback
from .writer import Writer


def show(session: Session, shown: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Let entities show what was just written to their rows.

    Args:
        shown: entities, each with the new values of its attributes.
    """
    for entity, values in shown:
        for key, value in values.items():
            set_committed_value(entity, key, value)
    if session.in_nested_transaction():
        keys = {key for _, values in shown for key in values}
        expire_on_savepoint_rollback(session, [entity for entity, _ in shown], list(keys))


def expire_on_savepoint_rollback(
    session: Session, entities: Sequence[Any], keys: list[str]
) -> None:
    """Have entities read attributes again once a savepoint is rolled back.

    A session expires what it flushed in a savepoint, but not what was set as
    committed in one.
    """

    def expire() -> None:
        for entity in entities:
            if entity in session:
                session.expire(entity, keys)

    undo_on_savepoint_rollback(session, expire)


def expire_entities(session: Session, entities: list[Any], mapping: QueueMapping) -> None:
    """Have entities read the queue's attributes again when they are next looked at."""
    for entity in entities:
        if entity in session:
            session.expire(entity, list(mapping.attributes.values()))


def show_deleted(session: Session, entities: list[Any]) -> None:
    """Leave entities whose rows were deleted as session.delete() and flush() would."""
    states = [sa_inspect(entity) for entity in entities if entity in session]
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
    again = select(mapping.entity).where(key_is_in(mapping, "claim_keys")).options(wanted)
    writer.orm(again, {"claim_keys": key_values(keys_of(mapping, entities))}).unique().all()
