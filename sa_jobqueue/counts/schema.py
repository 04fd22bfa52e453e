"""What the database has: what a model declares is not there before its migration has run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, inspect

from ..dialects.examination import ServerIndex, normalised
from ..model.keys import mapping_of_queue
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer

Q = TypeVar("Q")
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


def queues_there(connection: Connection, queues: Mapping[str, Q]) -> dict[str, Q]:
    """Return the queues whose tables are there, as of the last minute."""
    return {
        name: queue
        for name, queue in queues.items()
        if has_table(connection, mapping_of_queue(queue).table)
    }


def has_newest(writer: Writer, mapping: QueueMapping, word: str) -> bool:
    """Tell whether an index finds the newest rows of a status."""
    return any(_finds_newest(mapping, there, word) for there in indexes_of(writer, mapping))


def _finds_newest(mapping: QueueMapping, index: ServerIndex, word: str) -> bool:
    status, date = (mapping.column(role).name for role in ("status", "owner_date"))
    names = [column.name for column in index.columns]
    if index.unusable or not index.ordered:
        return False
    if index.predicate is None:
        return names[:2] == [status, date]
    if normalised(index.predicate) != normalised(f"{status} = '{word}'"):
        return False
    return [name for name in names if name != status][:1] == [date]


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
