"""Counts that end at a limit, the jobs that wait, and what the database has.

A queue with a million jobs is as quickly counted as a short one. The count of waiting jobs steps
from level to level of the claim index (round and priority), as a claim does, and reads only the
due entries of each: jobs that are due later are not walked over.

A table that a model declares may not be there before its migration has run, so the database is
asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Select, Table, case, func, inspect, null, select

from ..databases.clock import EPOCH, as_utc, utc_now
from ..model.keys import mapping_of_queue, plain_queue
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import UNCLAIMED
from ..sessions.writer import Writer, built_once
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows

#: The most jobs that are counted.
MOST = 10_000


@dataclass(frozen=True, order=True)
class Count:
    """A number of jobs.

    Attributes:
        number: how many were counted.
        more: whether there are more.
    """

    number: int
    more: bool = False

    def __str__(self) -> str:
        """Write it as ``1,234``, or ``10,000+``."""
        return f"{self.number:,}{'+' if self.more else ''}"


def counting(keys: Select[Any]) -> Select[Any]:
    """Return the SELECT of the number of rows of a SELECT, up to one more than MOST."""
    counted = keys.limit(MOST + 1).subquery("sa_jobqueue_counted")
    return select(func.count()).select_from(counted)


def count_of(number: int) -> Count:
    """Return the count for what :func:`counting` has read."""
    return Count(min(number, MOST), number > MOST)


def spec_of(queue: Any) -> ClaimSpec:
    """Return which jobs are a queue's own: of a mapped class, a JobQueue or a workflow's step.

    Raises:
        ArgumentError: it is no queue, or its class has no JobMixin, and so no status to show.
    """
    mapping, plain = mapping_of(mapping_of_queue(queue).mapper), plain_queue(queue)
    if not isinstance(plain, type):
        return cast("ClaimSpec", plain.plan.spec)
    ready, during = mapping.word(UNCLAIMED), mapping.claimed
    whole = ClaimSpec(mapping=mapping, where=(), order_by=(), ready=ready, during=during)
    # Kept in the mapping, for its statements; a cache would keep the class alive.
    return cast("ClaimSpec", vars(mapping).setdefault("_whole_queue", whole))


#: So many rounds and priorities of a queue are looked at.
LEVELS = 20

#: An earlier time is the constant of an INSERT in plain SQL, and tells nothing.
KNOWN_SINCE = EPOCH + timedelta(days=2)


def read_waiting(
    spec: ClaimSpec, writer: Writer
) -> tuple[Count, timedelta | None, datetime | None]:
    """Count the due jobs, level after level; read since when one is due, and when the next is."""
    levels = list(islice(ReadyRows(spec, writer.database).each_level(writer), LEVELS + 1))
    rows: list[Sequence[Any]] = []
    for level in levels[:LEVELS]:
        left = {"sa_jobqueue_limit": max(MOST + 1 - sum(row[0] for row in rows), 0)}
        rows.append(writer.rows(counting_due(spec, writer), level | left).one())
    due, oldest, next_due = waiting_of(rows)
    return Count(due.number, due.more or len(levels) > LEVELS), oldest, next_due


def waiting_of(
    rows: Sequence[Sequence[Any]],
) -> tuple[Count, timedelta | None, datetime | None]:
    """Add up what :func:`counting_due` has read of each level."""
    oldest = [as_utc(now) - as_utc(since) for _, since, _, now in rows if since is not None]
    coming = [as_utc(next_due) for _, _, next_due, _ in rows if next_due is not None]
    due = count_of(sum(row[0] for row in rows))
    return due, max(oldest, default=None), min(coming, default=None)


@built_once
def counting_due(spec: ClaimSpec, writer: Writer) -> Any:
    """Count the due jobs of a level, up to a limit; read the oldest, and the next."""
    mapping, ready = spec.mapping, ReadyRows(spec, writer.database)
    coming = null()
    if mapping.has("run_at") and spec.own_order:
        run_at = mapping.attribute("run_at")
        later = ready.select(run_at, plain=True, due=False).where(run_at > utc_now())
        coming = _hinted(spec, ready, later.limit(1)).scalar_subquery()
    since = _since(spec).label("since")
    due = due_rows(spec, writer, *mapping.key_attributes, since).subquery("sa_jobqueue_due")
    found: Any = select(func.count(), func.min(due.c.since), coming, utc_now())
    return found.select_from(due)


def due_rows(spec: ClaimSpec, writer: Writer, *columns: Any) -> Any:
    """Select columns of a level's due jobs, up to ``:sa_jobqueue_limit``."""
    mapping, ready = spec.mapping, ReadyRows(spec, writer.database)
    due = ready.select(*columns, plain=True)
    # In the order of the primary key PostgreSQL might walk over all rows.
    by_time = mapping.has("run_at") and spec.own_order
    return _hinted(spec, ready, due if by_time else due.order_by(None))


def _hinted(spec: ClaimSpec, ready: ReadyRows, statement: Any) -> Any:
    """Bind a SELECT to the claim index, where that has the queue's jobs in their order."""
    return ready.by_claim_index(statement) if spec.in_index_order else statement


def _since(spec: ClaimSpec) -> Any:
    """The time from which on a job waits; NULL: the class has no such column."""
    mapping = spec.mapping
    if mapping.has("run_at"):
        run_at = mapping.attribute("run_at")
        return case((run_at >= KNOWN_SINCE, run_at))
    name = mapping.args.enqueued_at
    return null() if name is None else getattr(mapping.entity, name)


Q = TypeVar("Q")

#: For how many seconds it is remembered whether a table is there.
REMEMBERED = 60.0

_known: WeakKeyDictionary[Engine, dict[Any, tuple[float, bool]]] = WeakKeyDictionary()


def has_table(connection: Connection, table: Table) -> bool:
    """Tell whether a table is there, as of the last minute."""
    schema, now = connection.schema_for_object(table), time.monotonic()
    known, key = _known.setdefault(connection.engine, {}), (schema, table.name)
    if key not in known or now - known[key][0] > REMEMBERED:
        known[key] = now, inspect(connection).has_table(table.name, schema=schema)
    return known[key][1]


def queues_there(connection: Connection, queues: Mapping[str, Q]) -> dict[str, Q]:
    """Return the queues whose tables are there, as of the last minute."""
    return {
        name: queue
        for name, queue in queues.items()
        if has_table(connection, mapping_of_queue(queue).table)
    }


def finds_newest(writer: Writer, mapping: QueueMapping, word: str) -> bool:
    """Tell whether the model declares an index that finds the newest rows of a status.

    On MySQL and MariaDB it is the reap index, which holds all rows there.
    """
    status, date = mapping.column("status"), mapping.column("owner_date")
    for index in mapping.table.indexes:
        where, columns = writer.database.predicate(index), [*index.expressions]
        if where is None:
            found = len(columns) > 1 and columns[0] is status and columns[1] is date
        else:
            how = {"literal_binds": True, "include_table": False}
            rest = [column for column in columns if column is not status]
            of_word = str(where.compile(compile_kwargs=how)) == f"{status.name} = '{word}'"
            found = of_word and rest[0] is date
        if found:
            return True
    return False
