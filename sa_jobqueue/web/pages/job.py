"""The page of a job: all that its row, its owner and the history tell."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from ...counts.count import has_table
from ...events import JobRecord, job_records
from ...model.keys import HISTORY, beside
from ...owners.alive import owner_state
from ...queue import JobQueue
from ...steering import Key
from ..door import Problem, Visit
from ..reading import reading
from ..rendering import from_path
from .actions import ACTIONS
from .queue import typed_key

#: How many records of the history are shown.
RECORDS = 100

#: The column of TraceMixin; its module needs OpenTelemetry.
TRACEPARENT = "traceparent"


def show_job(visit: Visit) -> Response:
    """Show the whole story of a job."""
    name, queue = visit.queue
    asked = typed_key(queue, from_path(visit.parameter("key")))
    with reading(visit.site.engine) as session:
        values = _read(session, queue, asked)
        mapping = queue.mapping
        key = tuple(values[each.key] for each in mapping.key_attributes)  # as the database has it
        roles = {role: values[each] for role, each in mapping.attributes.items() if each in values}
        roles["status"] = mapping.told(roles["status"])
        owner = roles.get("owner")
        return visit.page(
            "job",
            name=name,
            key=key,
            row={"roles": roles, **_other_values(queue, values)},
            key_names=[column.name for column in mapping.keys],
            owner_state=None if owner is None else owner_state(session, owner),
            records=_records(session, queue, key),
            verbs=_verbs(queue, roles["status"]),
        )


def _read(session: Session, queue: JobQueue[Any], key: Key) -> dict[str, Any]:
    """Read the columns of a job by their attributes, but for the deferred ones."""
    columns = {
        attribute.key: getattr(queue.entity, attribute.key)
        for attribute in queue.mapping.mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and not attribute.deferred
    }
    attributes = queue.mapping.key_attributes
    is_it = [column == value for column, value in zip(attributes, key, strict=True)]
    wanted = select(*columns.values()).where(*is_it, *queue.plan.spec.where)
    found = session.execute(wanted).first()
    if found is None:
        raise Problem(404, "No such job", "The queue has no job with this key, or not any more.")
    return dict(zip(columns, found, strict=True))


def _other_values(queue: JobQueue[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Sort what is no column of the queue's own: serial keys, the trace, and all others."""
    mapping = queue.mapping
    serial = {column.key for limit in queue.plan.spec.limits for column in limit.columns}
    known = {*mapping.attributes.values(), *(each.key for each in mapping.key_attributes)}
    parts = str(values.get(TRACEPARENT)).split("-")  # W3C: the second is the trace's id
    return {
        "serial_keys": {name: values[name] for name in sorted(serial) if name in values},
        "trace": parts[1] if len(parts) == 4 else None,
        "others": {name: value for name, value in values.items() if name not in known},
        "not_read": [each.key for each in mapping.mapper.column_attrs if each.deferred],
    }


def _records(session: Session, queue: JobQueue[Any], key: Key) -> list[JobRecord] | None:
    """Return what the history knows; None: there is no history."""
    table, connection = beside(queue.mapping, HISTORY), session.connection()
    if table is None or not has_table(connection, table):
        return None
    return job_records(connection, table, queue, key, limit=RECORDS)


def _verbs(queue: JobQueue[Any], status: str) -> list[str]:
    """List the verbs for a job of this status."""
    has_priority = queue.mapping.has("priority")
    known = [verb for verb in ACTIONS if verb != "reprioritize" or has_priority]
    return [verb for verb in known if status in queue.statuses_left_by(verb)]
