"""The page of a job: all that its row, its owner and the history tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from ...evidence import JobRecord, job_records
from ...model.beside import HISTORY, beside
from ...overview.schema import has_table
from ...owners.alive import OwnerState, owner_state
from ...queue import JobQueue
from ...steering import Key
from ..door import Problem, Visit
from ..reading import reading
from ..rendering import from_path
from .queue import named_queue, typed_key
from .verbs import verbs_for

#: How many records of the history are shown.
RECORDS = 100

#: The column of TraceMixin; its module needs OpenTelemetry.
TRACEPARENT = "traceparent"


@dataclass(frozen=True)
class JobRow:
    """The row of a job.

    Attributes:
        key: its key, as the database has it.
        roles: the values of the queue's columns, by their roles.
        serial_keys: the values that serial_by and limit_by go by, by their attributes.
        trace: the id of the trace in which it was enqueued.
        others: the other columns of the class, by their attributes.
        not_read: the deferred columns.
    """

    key: Key
    roles: Mapping[str, Any]
    serial_keys: Mapping[str, Any]
    trace: str | None
    others: Mapping[str, Any]
    not_read: tuple[str, ...]


def show_job(visit: Visit) -> Response:
    """Show the whole story of a job."""
    name, queue = named_queue(visit)
    key = typed_key(queue, from_path(visit.parameter("key")))
    with reading(visit.site.engine) as session:
        row = read_row(session, queue, key)
        return visit.page(
            "job",
            name=name,
            key=row.key,
            row=row,
            key_names=[column.name for column in queue.mapping.keys],
            owner_state=_owner_state(session, row),
            records=_records(session, queue, row.key),
            verbs=verbs_for(queue, row.roles["status"]),
        )


def read_row(session: Session, queue: JobQueue[Any], key: Key) -> JobRow:
    """Read a job of a queue.

    Raises:
        Problem: the queue has no job with this key.
    """
    spec, mapping = queue.plan.spec, queue.mapping
    columns = _columns(queue)
    is_it = [column == value for column, value in zip(mapping.key_attributes, key, strict=True)]
    found = session.execute(select(*columns.values()).where(*is_it, *spec.where)).first()
    if found is None:
        raise Problem(404, "No such job", "The queue has no job with this key, or not any more.")
    values = dict(zip(columns, found, strict=True))
    return _job_row(queue, values)


def _columns(queue: JobQueue[Any]) -> dict[str, Any]:
    """Return the attributes of the class that are columns, but for the deferred ones."""
    entity = queue.entity
    return {
        attribute.key: getattr(entity, attribute.key)
        for attribute in queue.mapping.mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and not attribute.deferred
    }


def _job_row(queue: JobQueue[Any], values: dict[str, Any]) -> JobRow:
    mapping = queue.mapping
    roles = {role: values[name] for role, name in mapping.attributes.items() if name in values}
    if "status" in roles:
        roles["status"] = mapping.told(roles["status"])
    serial = {column.key for limit in queue.plan.spec.limits for column in limit.columns}
    known = {*mapping.attributes.values(), *(each.key for each in mapping.key_attributes)}
    deferred = tuple(each.key for each in mapping.mapper.column_attrs if each.deferred)
    return JobRow(
        key=tuple(values[each.key] for each in mapping.key_attributes),
        roles=roles,
        serial_keys={name: values[name] for name in sorted(serial) if name in values},
        trace=_trace_id(values.get(TRACEPARENT)),
        others={name: value for name, value in values.items() if name not in known},
        not_read=deferred,
    )


def _trace_id(traceparent: Any) -> str | None:
    """Return the second part of a W3C traceparent."""
    parts = traceparent.split("-") if isinstance(traceparent, str) else []
    return parts[1] if len(parts) == 4 else None


def _owner_state(session: Session, row: JobRow) -> OwnerState | None:
    owner = row.roles.get("owner")
    return None if owner is None else owner_state(session, owner)


def _records(session: Session, queue: JobQueue[Any], key: Key) -> list[JobRecord] | None:
    """Return what the history knows; None: there is no history."""
    table = beside(queue.mapping, HISTORY)
    connection = session.connection()
    if table is None or not has_table(connection, table):
        return None
    return job_records(connection, table, queue, key, limit=RECORDS)
