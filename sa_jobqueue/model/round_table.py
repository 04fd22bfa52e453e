"""The table that records a queue's rounds: ``<table>_rounds``.

It gives out each number once, and tells a round whose start was interrupted from a
complete one. The queue's rows could not tell: a row that was claimed at the time, or that
was inserted since, looks like a forgotten row.

::

    round  criteria  begun_at             started_at
    1      5f3a..    2026-01-05 08:00:00  2026-01-05 08:00:07
    2      5f3a..    2026-02-02 08:00:00  NULL                  killed while it started

It is in the metadata of the queue's table, so ``create_all()`` and Alembic create it.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from sqlalchemy import BLANK_SCHEMA, Column, Integer, String, Table
from sqlalchemy.types import TypeEngine

from ..errors import ArgumentError
from .indexes import shortened
from .mapping import QueueMapping

#: The databases' shortest limit for a name, less our suffix.
_ROOM = 63 - len("_rounds")

#: Where a queue's table keeps the table of its rounds; see `indexes.py` for the reason.
_KEPT = "_sa_jobqueue_rounds"

_ours: WeakSet[Table] = WeakSet()


def add_round_table(mapping: QueueMapping, timestamp: TypeEngine[Any]) -> None:
    """Add the table of a queue's rounds to the metadata of the queue's table, once.

    Raises:
        ArgumentError: another table has this name.
    """
    table = mapping.table
    name = f"{shortened(table.name, _ROOM)}_rounds"
    there = table.metadata.tables.get(name if table.schema is None else f"{table.schema}.{name}")
    if there is not None and there not in _ours:
        raise ArgumentError(
            f"{name!r} is the table that records the rounds of {mapping}, and the metadata has "
            "another table of this name: rename the other table"
        )
    if there is None:
        there = Table(
            name,
            table.metadata,
            Column("round", Integer, primary_key=True, autoincrement=False),
            Column("criteria", String(64), nullable=False),
            Column("begun_at", timestamp, nullable=False),
            Column("started_at", timestamp),
            schema=BLANK_SCHEMA if table.schema is None else table.schema,
        )
        _ours.add(there)
    vars(table)[_KEPT] = there


def round_table(mapping: QueueMapping) -> Table:
    """Return the table of a queue's rounds.

    Raises:
        ArgumentError: a class without RoundMixin, or with it in another table than the status.
    """
    if not mapping.has("round"):
        raise ArgumentError(f"{mapping} has no rounds: add RoundMixin to its bases")
    if mapping.column("round").table is not mapping.table:
        raise ArgumentError(
            f"the round of {mapping} is in another table than its status: put RoundMixin into the "
            "class that has JobMixin"
        )
    rounds: Table = vars(mapping.table)[_KEPT]
    return rounds
