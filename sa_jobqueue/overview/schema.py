"""What the database has: what a model declares is not there before its migration has run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, inspect

from ..dialects.examination import ServerIndex
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer

R = TypeVar("R")

#: For how many seconds an answer is remembered: the questions cost more than all counts.
REMEMBERED = 60.0

_known: WeakKeyDictionary[Engine, dict[Any, tuple[float, Any]]] = WeakKeyDictionary()


def indexes_of(writer: Writer, mapping: QueueMapping) -> Sequence[ServerIndex]:
    """Return the indexes that the table has, as of the last minute."""
    examination, connection = writer.database.examination(), writer.connection
    return _remembered(
        connection, mapping.table, "indexes", lambda: examination.indexes(connection, mapping.table)
    )


def has_table(connection: Connection, table: Table) -> bool:
    """Tell whether a table is there, as of the last minute."""
    schema = connection.schema_for_object(table)
    return _remembered(
        connection,
        table,
        "there",
        lambda: inspect(connection).has_table(table.name, schema=schema),
    )


def forget_schema() -> None:
    """Ask again at the next time."""
    _known.clear()


def _remembered(connection: Connection, table: Table, question: str, ask: Callable[[], R]) -> R:
    known = _known.setdefault(connection.engine, {})
    key = (question, connection.schema_for_object(table), table.name)
    if key not in known or time.monotonic() - known[key][0] > REMEMBERED:
        known[key] = time.monotonic(), ask()
    answer: R = known[key][1]
    return answer
