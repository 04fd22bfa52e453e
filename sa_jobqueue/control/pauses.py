"""pause() and resume(): no worker claims from a paused queue; running jobs finish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from ..dialects import database_of
from ..dialects.clock import as_utc, utc_now
from ..model.queue_name import mapping_of_queue, queue_name
from ..sessions.writer import AnySession, session_of
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
