"""The rows of workers: each worker writes its row, and workers() lists them with their states."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select, update

from ..dialects.clock import as_utc, utc_now
from ..model.keys import mapping_of_queue, queue_name
from ..owners.alive import OwnerState, owner_states
from ..sessions.writer import AnySession, session_of
from .tables import HOST_LENGTH, ControlTables, names_missing_tables, tables_for

#: How long the row of a killed worker, and a stop request, stay in their tables.
KEPT = timedelta(days=1)


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as its row tells.

    Attributes:
        name: the owner of its claims.
        queues: the names of its queues.
        since: when it was registered, by the database's clock.
        seen_at: when it last wrote its row.
        jobs: how many jobs it had in hand then.
        state: ALIVE or DEAD by its lock; UNKNOWN if the server cannot tell.
    """

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    since: datetime
    seen_at: datetime
    jobs: int
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
    return [_info(row, states[row.name]) for row in rows]


@names_missing_tables
def register_worker(
    session: AnySession,
    name: str,
    queues: Iterable[Any],
    *,
    jobs: int = 0,
    tables: ControlTables | None = None,
) -> None:
    """Write the row of this process's worker, again while it works; delete rows that are a day old.

    Args:
        name: the owner of its claims.
        queues: as for :func:`sa_jobqueue.control.pause`.
        jobs: how many jobs it has in hand.
        tables: by default those in the metadata of the first queue's table.

    Raises:
        ArgumentError: there are no control tables.
        MissingTable: the database does not have them.
    """
    queues, session = list(queues), session_of(session)
    found = tables_for(tables, mapping_of_queue(queues[0]) if queues else None)
    names = json.dumps([queue_name(queue) for queue in queues])
    row = {"queues": names, "jobs": jobs, "seen_at": utc_now()}
    written: Any = session.execute(update(found.workers).where(*_is_ours(found, name)).values(row))
    if not written.rowcount:
        _forget(session, found)
        key = {"name": name, "host": _host(), "pid": os.getpid(), "since": utc_now()}
        session.execute(insert(found.workers).values({**key, **row}))


@names_missing_tables
def unregister_worker(
    session: AnySession, name: str, *, tables: ControlTables | None = None
) -> None:
    """Delete the row of this process's worker."""
    found = tables_for(tables)
    session_of(session).execute(delete(found.workers).where(*_is_ours(found, name)))


def _forget(session: Any, tables: ControlTables) -> None:
    """Delete rows of workers, and stop requests, that were last written a day ago."""
    long_ago = utc_now(-(KEPT // timedelta(microseconds=1)))
    workers, stops = tables.workers, tables.stops
    old = session.execute(select(workers).where(workers.c.seen_at < long_ago)).all()
    states = owner_states(session.connection(), {row.name for row in old}) if old else {}
    for row in old:
        if states[row.name] is not OwnerState.ALIVE:
            session.execute(delete(workers).where(*_is(tables, row.name, row.host, row.pid)))
    session.execute(delete(stops).where(stops.c.since < long_ago))


def _is_ours(tables: ControlTables, name: str) -> list[ColumnElement[bool]]:
    return _is(tables, name, _host(), os.getpid())


def _is(tables: ControlTables, name: str, host: str, pid: int) -> list[ColumnElement[bool]]:
    columns = tables.workers.c
    return [columns.name == name, columns.host == host, columns.pid == pid]


def _host() -> str:
    return socket.gethostname()[:HOST_LENGTH]


def _info(row: Any, state: OwnerState) -> WorkerInfo:
    queues = tuple(json.loads(row.queues))
    since, seen_at = as_utc(row.since), as_utc(row.seen_at)
    return WorkerInfo(row.name, row.host, row.pid, queues, since, seen_at, row.jobs, state)
