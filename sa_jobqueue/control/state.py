"""read_control(): pauses and stop requests, which a worker reads once a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, literal, null, select, union_all

from ..dialects.clock import as_utc
from ..fence.token import Fence
from ..model.mapping import any_mapping_of
from ..model.queue_name import queue_name
from ..sessions.writer import AnyConnection, session_of
from .stops import key_text
from .tables import ControlTables, names_missing_tables, tables_for_queues


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
    found, names = tables_for_queues(tables, queues), [queue_name(queue) for queue in queues]
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
