"""pause(), resume() and request_stop(); a worker reads what they ask for once a second."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, literal, null, select, union_all, update

from ..dialects import database_of
from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError, NotClaimed
from ..fence.claim import fence_of, jobs_with_keys
from ..fence.token import Fence
from ..model.keys import mapping_of_queue, queue_name
from ..model.mapping import QueueMapping, any_mapping_of
from ..model.status import status_is
from ..sessions.writer import AnyConnection, AnySession, Writer, session_of, writing
from .tables import KEY_LENGTH, ControlTables, names_missing_tables, tables_for


@dataclass(frozen=True)
class Pause:
    """A queue that is paused.

    Attributes:
        queue: its name: the table's name, and its ready status if the queue has one of its own.
        since: the time of the pause, by the database's clock.
    """

    queue: str
    since: datetime


@names_missing_tables
def pause(session: AnySession, queue: Any, *, tables: ControlTables | None = None) -> bool:
    """Pause a queue, from the caller's commit on; return whether this changed anything.

    Args:
        queue: a mapped class, a JobQueue or a workflow's step. Queues of one table and one
            ready status are paused together, whatever their criteria.
        tables: by default those in the metadata of the queue's table.

    Raises:
        ArgumentError: no queue, or there are no control tables.
        MissingTable: the database does not have them.
    """
    session, pauses = session_of(session), tables_for(tables, mapping_of_queue(queue)).pauses
    name = queue_name(queue)
    if session.scalar(select(pauses.c.queue).where(pauses.c.queue == name)) is not None:
        return False
    connection = session.connection(bind_arguments={"clause": pauses.insert()})
    new = database_of(connection).insert_new(pauses)  # another may pause it meanwhile
    session.execute(new.values(queue=name, since=utc_now()))
    return True


@names_missing_tables
def resume(session: AnySession, queue: Any, *, tables: ControlTables | None = None) -> bool:
    """Let workers claim from a queue again; return whether it was paused.

    Raises:
        ArgumentError, MissingTable: as for :func:`pause`.
    """
    pauses = tables_for(tables, mapping_of_queue(queue)).pauses
    gone: Any = session_of(session).execute(
        delete(pauses).where(pauses.c.queue == queue_name(queue))
    )
    return bool(gone.rowcount)


@names_missing_tables
def paused(session: AnySession, *, tables: ControlTables | None = None) -> list[Pause]:
    """List the queues that are paused, by name.

    Raises:
        ArgumentError: the process has no control tables, or several, and `tables` is not given.
        MissingTable: the database does not have them.
    """
    pauses = tables_for(tables).pauses
    rows = session_of(session).execute(select(pauses).order_by(pauses.c.queue))
    return [Pause(row.queue, as_utc(row.since)) for row in rows]


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
    jobs = jobs_with_keys(job)
    if len(jobs) != 1:
        raise ArgumentError(
            f"request_stop() takes one job, and was given {len(jobs)} jobs: call it for each, as "
            "in [job for job in jobs if request_stop(session, job)]"
        )
    ((job, mapping, identity),) = jobs
    statuses, stops = _claimed_statuses(job, mapping), tables_for(tables, mapping).stops
    key = {"queue_table": mapping.table.fullname, "job_key": key_text(identity)}
    known = [stops.c[name] == value for name, value in key.items()]
    with writing(session_of(session), mapping) as writer, writer.atomically():
        # On a database with one writer, wait for the write lock before the read: a transactional
        # handler holds the lock until its job is done.
        writer.lock_writes(mapping.table)
        asked = None
        # A write may wait for another request for this job, and the job may end meanwhile.
        while (claimed := _claim_now(writer, mapping, identity, statuses)) != asked:
            asked = claimed
            if asked is None:
                writer.core(delete(stops).where(*known))
                continue
            values = {"owner": asked[0], "owner_date": asked[1], "since": utc_now()}
            if not writer.core(update(stops).where(*known).values(values)).rowcount:
                # Another session may have written this request meanwhile.
                writer.core(writer.database.insert_new(stops).values({**key, **values}))
    return asked is not None


def key_text(identity: tuple[Any, ...]) -> str:
    """Write a primary key as text, such as ``[7]``."""
    return json.dumps(list(identity), default=str)[:KEY_LENGTH]


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


@dataclass(frozen=True)
class ControlState:
    """The pauses and the stop requests for a worker.

    Attributes:
        paused: the names of its queues that are paused.
        stops: for each claim to stop: its table, the key as text and an owner_date.
    """

    paused: frozenset[str] = frozenset()
    stops: frozenset[tuple[str, str, datetime]] = frozenset()

    def is_paused(self, queue: Any) -> bool:
        """Tell whether a queue is paused."""
        return bool(self.paused) and queue_name(queue) in self.paused

    def asks_to_stop(self, fence: Fence) -> bool:
        """Tell whether a claim is to be stopped, also if it was renewed after the request."""
        if not self.stops:
            return False
        table = any_mapping_of(fence.entity).table.fullname
        key = key_text(fence.identity)
        return any((table, key, as_utc(date)) in self.stops for date in fence.token.dates)


@names_missing_tables
def read_control(
    session: AnyConnection,
    queues: Iterable[Any],
    *,
    owner: str | Iterable[str],
    tables: ControlTables | None = None,
) -> ControlState:
    """Read which queues are paused, and which claims of an owner are to be stopped.

    It is one statement that uses two primary keys and an index: you can call it once a second.

    Args:
        queues: as for :func:`sa_jobqueue.control.pause`.
        owner: the owner of the worker's claims, or several: an Owner that has lost its lock claims
            under a new name, and the jobs in hand keep the old one.
        tables: by default those in the metadata of the first queue's table.

    Raises:
        ArgumentError: there are no control tables.
        MissingTable: the database does not have them.
    """
    queues = list(queues)
    found = tables_for(tables, mapping_of_queue(queues[0]) if queues else None)
    names = [queue_name(queue) for queue in queues]
    owners = [owner] if isinstance(owner, str) else list(owner)
    on = session if isinstance(session, Connection) else session_of(session)
    rows: Any = on.execute(_statement(found, names, owners))
    paused: set[str] = set()
    stops: set[tuple[str, str, datetime]] = set()
    for kind, name, key, date in rows:
        if kind == "pause":
            paused.add(name)
        else:
            stops.add((name, key, as_utc(date)))
    return ControlState(frozenset(paused), frozenset(stops))


def _statement(tables: ControlTables, names: list[str], owners: list[str]) -> Any:
    stops, pauses = tables.stops.c, tables.pauses.c
    # The stops come first: a UNION takes its types from there, and NULL has none.
    asked: Any = select(literal("stop"), stops.queue_table, stops.job_key, stops.owner_date).where(
        stops.owner.in_(owners)
    )
    at_rest: Any = select(literal("pause"), pauses.queue, null(), null()).where(
        pauses.queue.in_(names)
    )
    return union_all(asked, at_rest)
