"""pause(), resume(), and read_control(): what a worker reads once a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, literal, null, select, union_all

from ..dialects import database_of
from ..dialects.clock import as_utc, utc_now
from ..fence.token import Fence
from ..model.mapping import any_mapping_of
from ..model.queue_name import mapping_of_queue, queue_name
from ..sessions.writer import AnyConnection, AnySession, session_of
from .stops import key_text
from .tables import ControlTables, names_missing_tables, tables_for


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
