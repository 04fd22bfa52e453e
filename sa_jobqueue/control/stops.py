"""request_stop(): ask the worker that has a job to stop it; its handler decides when."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select, update

from ..dialects import database_of
from ..dialects.clock import utc_now
from ..fence.claim import jobs_with_keys
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..sessions.writer import AnySession, session_of
from .tables import KEY_LENGTH, ControlTables, tables_for


def request_stop(session: AnySession, job: Any, *, tables: ControlTables | None = None) -> bool:
    """Ask the worker that has a job to stop it, from the caller's commit on.

    It is for the claim that the job has now: a later attempt is not stopped.

    Args:
        job: an entity or a fence, of any session.
        tables: by default those in the metadata of the job's table.

    Returns:
        Whether anybody has the job claimed; if not, nothing was written.

    Raises:
        ArgumentError: no job, or there are no control tables.
    """
    session = session_of(session)
    ((_, mapping, identity),) = jobs_with_keys(job)
    stops = tables_for(tables, mapping).stops
    claimed = _claim_now(session, mapping, identity)
    if claimed is None:
        return False
    owner, owner_date = claimed
    values = {"owner": owner, "owner_date": owner_date, "since": utc_now()}
    key = {"queue_table": mapping.table.fullname, "job_key": key_text(identity)}
    known = [stops.c[name] == value for name, value in key.items()]
    written: Any = session.execute(update(stops).where(*known).values(values))
    if not written.rowcount:
        connection = session.connection(bind_arguments={"clause": stops.insert()})
        new = database_of(connection).insert_new(stops)  # another may ask for it meanwhile
        session.execute(new.values({**key, **values}))
    return True


def key_text(identity: tuple[Any, ...]) -> str:
    """Write a primary key as text, such as ``[7]``."""
    return json.dumps(list(identity), default=str)[:KEY_LENGTH]


def _claim_now(session: Any, mapping: QueueMapping, identity: tuple[Any, ...]) -> Any:
    """Return the owner and the owner_date of a claimed job; None: nobody has it."""
    keys = (key == value for key, value in zip(mapping.keys, identity, strict=True))
    status, owner = mapping.column("status"), mapping.column("owner")
    read = select(owner, mapping.column("owner_date")).where(
        *keys, status_is(status, *mapping.during), owner.is_not(None)
    )
    return session.execute(read).first()
