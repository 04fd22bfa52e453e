"""New jobs that a flush inserts, as by ``session.add(Email(..))``: after_enqueue, and wake-ups."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Mapper, object_session
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import database_of
from ..model.mapping import any_mapping_of
from ..model.mixins import QueueColumns
from ..sessions.writer import Writer
from .claimable import note_claimable
from .event import Event, EventJob
from .listener import called_on
from .notes import note

_watched: WeakSet[type[Any]] = WeakSet()


@event.listens_for(QueueColumns, "after_mapper_constructed", propagate=True)
def _watch_notifying(mapper: Mapper[Any], class_: type[Any]) -> None:
    """Watch the flushes of a class that notifies: a process may only add jobs, and call no verb."""
    if getattr(class_, "__queue_args__", {}).get("notify"):
        watch_flushes(mapper)


def watch_flushes(mapper: Mapper[Any]) -> None:
    """Note the new jobs of a class, its parents and its subclasses from now on."""
    base = mapper.base_mapper.class_  # for all of them once
    if base not in _watched:
        _watched.add(base)
        event.listen(base, "after_insert", _inserted, propagate=True)


def _inserted(mapper: Mapper[Any], connection: Connection, entity: Any) -> None:
    mapping, session = any_mapping_of(mapper), object_session(entity)
    wanted = mapping.listeners or mapping.wakes
    if not wanted or not mapping.is_queue or session is None:
        return
    status = mapping.told(instance_dict(entity).get(mapping.attributes["status"]))
    if status not in (None, *mapping.ready):  # None: the default of the table
        return
    database = database_of(connection)
    in_autocommit = database.in_autocommit(connection)
    writer = Writer(session, connection, database, in_autocommit, mapper)
    if mapping.listeners:
        job = EventJob(tuple(mapper.primary_key_from_instance(entity)), status)
        with called_on(None):  # a queue's method may flush what others have added
            note(writer, mapping, Event("after_enqueue", "flush", mapping.entity, (job,), 1))
    if mapping.wakes:
        note_claimable(writer, mapping)
