"""request_stop(): ask the worker that has a job to stop it; its handler decides when."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Table, delete, select, update

from ..dialects.clock import utc_now
from ..errors import ArgumentError, NotClaimed
from ..fence.claim import fence_of, jobs_with_keys
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..sessions.writer import AnySession, Writer, session_of, writing
from .tables import KEY_LENGTH, ControlTables, names_missing_tables, tables_for


@names_missing_tables
def request_stop(session: AnySession, job: Any, *, tables: ControlTables | None = None) -> bool:
    """Ask the worker that has a job to stop it, from the caller's commit on.

    The request is for the job's current claim: it does not stop a later attempt.

    Args:
        job: an entity or a fence, of any session. Where the class does not declare the
            queue's `during`, a fence or the entity that the claim returned.
        tables: by default those in the metadata of the job's table.

    Returns:
        Whether the job is claimed; if not, nothing was written.

    Raises:
        ArgumentError: no job, several jobs, or there are no control tables.
        MissingTable: the database does not have them.
    """
    session = session_of(session)
    job, mapping, identity = _one_job(job)
    statuses = _claimed_statuses(job, mapping)
    stops = tables_for(tables, mapping).stops
    with writing(session, mapping) as writer, writer.atomically():
        # On a database with one writer, wait for the write lock before the read: a transactional
        # handler holds the lock until its job is done.
        writer.lock_writes(mapping.table)
        key = {"queue_table": mapping.table.fullname, "job_key": key_text(identity)}
        asked = None
        # A write may wait for another request for this job, and the job may end meanwhile.
        while (claimed := _claim_now(writer, mapping, identity, statuses)) != asked:
            _write(writer, stops, key, claimed)
            asked = claimed
    return asked is not None


def key_text(identity: tuple[Any, ...]) -> str:
    """Write a primary key as text, such as ``[7]``."""
    return json.dumps(list(identity), default=str)[:KEY_LENGTH]


def _one_job(job: Any) -> tuple[Any, QueueMapping, tuple[Any, ...]]:
    """Return a job with its mapping and its primary key.

    Raises:
        ArgumentError: it is no job, or several.
    """
    found = jobs_with_keys(job)
    if len(found) != 1:
        raise ArgumentError(
            f"request_stop() takes one job, and was given {len(found)} jobs: call it for each, as "
            "in [job for job in jobs if request_stop(session, job)]"
        )
    return found[0]


def _claimed_statuses(job: Any, mapping: QueueMapping) -> tuple[str, ...]:
    """Return the statuses of claimed jobs that the class declares, and that of the job's fence."""
    try:
        token = fence_of(job).token
    except NotClaimed:
        return mapping.during
    return mapping.during if token.hold else (*mapping.during, token.status)


def _claim_now(
    writer: Writer,
    mapping: QueueMapping,
    identity: tuple[Any, ...],
    statuses: tuple[str, ...],
) -> tuple[Any, ...] | None:
    """Return the owner and the owner_date of a claimed job; None: it is not claimed."""
    keys = (key == value for key, value in zip(mapping.keys, identity, strict=True))
    status, owner = mapping.column("status"), mapping.column("owner")
    read = select(owner, mapping.column("owner_date")).where(
        *keys, status_is(status, *statuses), owner.is_not(None)
    )
    row = writer.core(read).first()
    return None if row is None else tuple(row)


def _write(
    writer: Writer, stops: Table, key: dict[str, str], claimed: tuple[Any, ...] | None
) -> None:
    """Write the request for a claim; None: the job is no longer claimed, and nothing is written."""
    known = [stops.c[name] == value for name, value in key.items()]
    if claimed is None:
        writer.core(delete(stops).where(*known))
        return
    owner, owner_date = claimed
    values = {"owner": owner, "owner_date": owner_date, "since": utc_now()}
    if not writer.core(update(stops).where(*known).values(values)).rowcount:
        # Another session may have written this request meanwhile.
        writer.core(writer.database.insert_new(stops).values({**key, **values}))
