"""Control: list workers, pause queues, and stop jobs, with three more tables.

::

    control_tables(Base.metadata)                # before create_all(), or a migration

    pause(session, Email)
    session.commit()
    for worker in workers(session):
        print(worker.name, worker.state, worker.jobs)

``create_all()`` and Alembic's autogenerate create them. The verbs find them by the metadata of a
queue's table. A verb that takes no queue uses the only control tables of the process.

The tables are optional: without them, no statement reads them. docs/control.md has the limits.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from weakref import WeakSet

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    literal,
    null,
    select,
    union_all,
)

from .databases import database_of
from .databases.clock import as_utc, utc_now
from .errors import ArgumentError, NotClaimed
from .fence.claim import fence_of, jobs_with_keys
from .fence.token import Fence
from .model.columns import OWNER_LENGTH, timestamp_type
from .model.keys import CONTROL, beside, key_json, mapping_of_queue, queue_name, table_in
from .model.mapping import any_mapping_of
from .model.status import status_is
from .owners.alive import OwnerState, owner_states
from .sessions.transactions import missing_tables_named
from .sessions.writer import AnyConnection, AnySession, session_of, writing

__all__ = [
    "ControlState",
    "ControlTables",
    "Pause",
    "WorkerInfo",
    "control_tables",
    "pause",
    "paused",
    "read_control",
    "register_worker",
    "request_stop",
    "resume",
    "unregister_worker",
    "workers",
]

#: The longest name of a queue: its table's schema and name, and a status.
QUEUE_LENGTH = 150

#: The longest text of a primary key; a longer text is cut, and the claim's time identifies it.
KEY_LENGTH = 255

HOST_LENGTH = 64
STUCK_LENGTH = 50

#: How long the row of a killed worker, and a stop request, stay in their tables.
KEPT = timedelta(days=1)

_metadata: WeakSet[MetaData] = WeakSet()


@dataclass(frozen=True)
class ControlTables:
    """The tables that :func:`control_tables` has made."""

    workers: Table
    pauses: Table
    stops: Table


def control_tables(
    metadata: MetaData, *, prefix: str = "job", schema: str | None = None
) -> ControlTables:
    """Add the tables of workers, pauses and stop requests to a MetaData, once.

    Args:
        prefix: the names are ``<prefix>_workers``, ``<prefix>_pauses`` and ``<prefix>_stops``.
        schema: by default that of the metadata.

    Raises:
        ArgumentError: the metadata has tables of these names already, which are not ours.
    """
    if CONTROL in metadata.info:
        found: ControlTables = metadata.info[CONTROL]
        return found

    def table(end: str, *items: Any) -> Table:
        name = f"{prefix}_{end}"
        if table_in(metadata, name, schema) is not None:
            raise ArgumentError(f"the metadata has a table {name!r}: give another prefix=")
        return Table(name, metadata, *items, schema=schema)

    def time(name: str) -> Column[Any]:
        return Column(name, timestamp_type(), nullable=False)

    workers = table(
        "workers",
        Column("name", String(OWNER_LENGTH), primary_key=True),
        # Workers without an Owner may share a name.
        Column("host", String(HOST_LENGTH), primary_key=True),
        Column("pid", Integer, primary_key=True, autoincrement=False),
        Column("queues", Text, nullable=False),
        time("since"),
        time("seen_at"),
        Column("jobs", Integer, nullable=False),
        Column("stuck", String(STUCK_LENGTH)),
    )
    pauses = table("pauses", Column("queue", String(QUEUE_LENGTH), primary_key=True), time("since"))
    stops = table(
        "stops",
        Column("queue_table", String(QUEUE_LENGTH), primary_key=True),
        Column("job_key", String(KEY_LENGTH), primary_key=True),
        Column("owner", String(OWNER_LENGTH), nullable=False),
        time("owner_date"),
        time("since"),
        Index(f"{prefix}_stops_owner", "owner"),
    )
    metadata.info[CONTROL] = tables = ControlTables(workers, pauses, stops)
    _metadata.add(metadata)
    return tables


#: Decorates a function that uses the tables: without them, the function raises MissingTable.
names_missing_tables = missing_tables_named(
    lambda: [table for known in _metadata for table in vars(known.info[CONTROL]).values()]
)


def tables_for(given: ControlTables | None, *queues: Any) -> ControlTables:
    """Return the given tables, those beside the first queue, or the only ones of the process.

    Raises:
        ArgumentError: there are none, or several.
    """
    if given is not None:
        return given
    if queues:
        mapping = mapping_of_queue(queues[0])
        known = [found] if (found := beside(mapping, CONTROL)) else []
        wrong = (
            f"the metadata of {mapping} has no control tables: call control_tables(metadata) "
            "with the metadata of its table, before the tables are created"
        )
    else:
        known = [metadata.info[CONTROL] for metadata in _metadata]
        wrong = (
            f"this process has {len(known)} sets of control tables: name yours by tables=, "
            "as control_tables(metadata) returns it"
        )
    if len(known) != 1:
        raise ArgumentError(wrong)
    return cast("ControlTables", known[0])


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
    session, pauses = session_of(session), tables_for(tables, queue).pauses
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
    pauses = tables_for(tables, queue).pauses
    ours = pauses.c.queue == queue_name(queue)
    gone: Any = session_of(session).execute(pauses.delete().where(ours))
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
    statuses, stops = mapping.during, tables_for(tables, mapping.entity).stops
    with suppress(NotClaimed):  # the class need not declare the status of a claim that we know
        token = fence_of(job).token
        statuses = statuses if token.hold else (*statuses, token.status)
    status, owner = mapping.column("status"), mapping.column("owner")
    claimed_now: Any = select(owner, mapping.column("owner_date")).where(
        *(key == value for key, value in zip(mapping.keys, identity, strict=True)),
        status_is(status, *statuses),
        owner.is_not(None),
    )
    key = {"queue_table": mapping.table.fullname, "job_key": key_json(identity)[:KEY_LENGTH]}
    known = [stops.c[name] == value for name, value in key.items()]
    with writing(session_of(session), mapping) as writer, writer.atomically():
        # On a database with one writer, wait for the write lock before the read: a transactional
        # handler holds the lock until its job is done.
        writer.lock_writes(mapping.table)
        claimed: Any = writer.core(claimed_now).first()
        if claimed is None:
            return False
        values = {"owner": claimed.owner, "owner_date": claimed.owner_date, "since": utc_now()}
        if not writer.core(stops.update().where(*known).values(values)).rowcount:
            # Another session may have written this request meanwhile.
            writer.core(writer.database.insert_new(stops).values({**key, **values}))
    return True


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
        key = key_json(fence.identity)[:KEY_LENGTH]
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
    found = tables_for(tables, *queues)
    stops, pauses = found.stops.c, found.pauses.c
    owners = [owner] if isinstance(owner, str) else list(owner)
    # The stops come first: a UNION takes its types from there, and NULL has none.
    asked: Any = select(literal("stop"), stops.queue_table, stops.job_key, stops.owner_date)
    at_rest: Any = select(literal("pause"), pauses.queue, null(), null())
    both = union_all(
        asked.where(stops.owner.in_(owners)),
        at_rest.where(pauses.queue.in_([queue_name(queue) for queue in queues])),
    )
    on = session if isinstance(session, Connection) else session_of(session)
    rows: Any = on.execute(both).all()
    return ControlState(
        frozenset(name for kind, name, _, _ in rows if kind == "pause"),
        frozenset((name, key, as_utc(date)) for kind, name, key, date in rows if kind == "stop"),
    )


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as its row tells.

    Attributes:
        name: the owner of its claims.
        queues: the names of its queues.
        since: when it was registered, by the database's clock.
        seen_at: when it last wrote its row.
        jobs: how many jobs it had in hand then.
        stuck: the call to its database that neither returns nor can be ended; None: there is none.
        state: ALIVE or DEAD by its lock; UNKNOWN if the server cannot tell; STUCK if it is not
            dead, and stuck.
    """

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    since: datetime
    seen_at: datetime
    jobs: int
    stuck: str | None
    state: OwnerState


@names_missing_tables
def workers(session: AnySession, *, tables: ControlTables | None = None) -> list[WorkerInfo]:
    """List the workers, the oldest first, with their liveness.

    A worker that was killed stays in the list, as DEAD, for a day.

    Raises:
        ArgumentError: the process has no control tables, or several, and `tables` is not given.
        MissingTable: the database does not have them.
    """
    session, table = session_of(session), tables_for(tables).workers
    rows = session.execute(select(table).order_by(table.c.since, table.c.name)).all()
    connection = session.connection(bind_arguments={"clause": select(table)})
    states = owner_states(connection, {row.name for row in rows})
    return [
        WorkerInfo(
            **{
                **row._mapping,
                "queues": tuple(json.loads(row.queues)),
                "since": as_utc(row.since),
                "seen_at": as_utc(row.seen_at),
                "state": _state(states[row.name], row.stuck),
            }
        )
        for row in rows
    ]


def _state(of_lock: OwnerState, stuck: str | None) -> OwnerState:
    return of_lock if stuck is None or of_lock is OwnerState.DEAD else OwnerState.STUCK


@names_missing_tables
def register_worker(
    session: AnySession,
    name: str,
    queues: Iterable[Any],
    *,
    jobs: int = 0,
    stuck: str | None = None,
    tables: ControlTables | None = None,
) -> None:
    """Write the row of this process's worker, again while it works; delete rows that are a day old.

    Args:
        name: the owner of its claims.
        queues: as for :func:`sa_jobqueue.control.pause`.
        jobs: how many jobs it has in hand.
        stuck: the call to its database that neither returns nor can be ended.
        tables: by default those in the metadata of the first queue's table.

    Raises:
        ArgumentError: there are no control tables.
        MissingTable: the database does not have them.
    """
    queues, session = list(queues), session_of(session)
    table = (found := tables_for(tables, *queues)).workers
    names = json.dumps([queue_name(queue) for queue in queues])
    row = {"queues": names, "jobs": jobs, "stuck": stuck, "seen_at": utc_now()}
    written: Any = session.execute(table.update().where(*_is_ours(found, name)).values(row))
    if not written.rowcount:
        _forget(session, found)
        key = {"name": name, "host": _host(), "pid": os.getpid(), "since": utc_now()}
        session.execute(table.insert().values({**key, **row}))


@names_missing_tables
def unregister_worker(
    session: AnySession, name: str, *, tables: ControlTables | None = None
) -> None:
    """Delete the row of this process's worker."""
    found = tables_for(tables)
    session_of(session).execute(found.workers.delete().where(*_is_ours(found, name)))


def _forget(session: Any, tables: ControlTables) -> None:
    """Delete rows of workers, and stop requests, that were last written a day ago."""
    long_ago = utc_now(-(KEPT // timedelta(microseconds=1)))
    workers, stops = tables.workers, tables.stops
    old = session.execute(select(workers).where(workers.c.seen_at < long_ago)).all()
    states = owner_states(session.connection(), {row.name for row in old}) if old else {}
    for row in old:
        if states[row.name] is not OwnerState.ALIVE:
            same = [column == row._mapping[column] for column in workers.primary_key]
            session.execute(workers.delete().where(*same))
    session.execute(stops.delete().where(stops.c.since < long_ago))


def _is_ours(tables: ControlTables, name: str) -> list[ColumnElement[bool]]:
    key = {"name": name, "host": _host(), "pid": os.getpid()}
    return [tables.workers.c[column] == value for column, value in key.items()]


def _host() -> str:
    return socket.gethostname()[:HOST_LENGTH]
