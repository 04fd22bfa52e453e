"""Counts that end at a limit, the jobs that wait, and what the database has.

A queue with a million jobs is as quickly counted as a short one. The count of waiting jobs steps
from level to level of the claim index (round and priority), as a claim does, and reads only the
due entries of each: jobs that are due later are not walked over.

What a model declares is not there before its migration has run, so the database is asked for its
tables and indexes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Select, Table, case, func, inspect, null, select

from ..dialects.clock import EPOCH, as_utc, utc_now
from ..dialects.examination import ServerIndex, normalised
from ..model.keys import mapping_of_queue, plain_queue, queue_name
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import DONE, UNCLAIMED
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows

#: The most jobs that are counted.
MOST = 10_000


@dataclass(frozen=True)
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


def count_rows(writer: Writer, keys: Select[Any]) -> Count:
    """Count the rows of a SELECT, up to MOST."""
    counted = keys.limit(MOST + 1).subquery("sa_jobqueue_counted")
    counting = select(func.count()).select_from(counted)
    found = int(writer.rows(counting).scalar_one())
    return Count(min(found, MOST), found > MOST)


@dataclass(frozen=True, eq=False)
class Counted:
    """A queue that is counted.

    Attributes:
        spec: which jobs are its own, and in which order they are claimed.
        then: the status of a completed job.
    """

    name: str
    spec: ClaimSpec
    then: str

    @classmethod
    def of(cls, queue: Any) -> Counted:
        """Take a mapped class, a JobQueue or a workflow's step.

        Raises:
            ArgumentError: it is no queue, or its class has no JobMixin, and so no status to show.
        """
        mapping = mapping_of(mapping_of_queue(queue).mapper)
        plain = plain_queue(queue)
        if isinstance(plain, type):
            return cls(queue_name(queue), _whole_queue(mapping), DONE)
        return cls(queue_name(queue), plain.plan.spec, plain.then)


def _whole_queue(mapping: QueueMapping) -> ClaimSpec:
    """Return the queue of a class: all of its unclaimed rows.

    It is kept in the mapping, for its statements; a cache would keep the class alive.
    """
    whole = ClaimSpec(
        mapping=mapping,
        where=(),
        order_by=(),
        ready=mapping.word(UNCLAIMED),
        during=mapping.claimed,
    )
    kept: ClaimSpec = vars(mapping).setdefault("_whole_queue", whole)
    return kept


#: So many rounds and priorities of a queue are looked at.
LEVELS = 20

#: An earlier time is the constant of an INSERT in plain SQL, and tells nothing.
KNOWN_SINCE = EPOCH + timedelta(days=2)


def read_waiting(
    spec: ClaimSpec, writer: Writer
) -> tuple[Count, timedelta | None, datetime | None]:
    """Count the due jobs, level after level; read since when one is due, and when the next is."""
    levels = list(islice(ReadyRows(spec, writer.database).levels.each(writer), LEVELS + 1))
    found, oldest, coming = 0, list[timedelta](), list[datetime]()
    for level in levels[:LEVELS]:
        left = {"sa_jobqueue_limit": max(MOST + 1 - found, 0)}
        row = writer.rows(_counting(spec, writer), level | left).one()
        count, since, next_due, now = tuple(row)
        found += count
        oldest += [] if since is None else [as_utc(now) - as_utc(since)]
        coming += [] if next_due is None else [as_utc(next_due)]
    due = Count(min(found, MOST), found > MOST or len(levels) > LEVELS)
    return due, max(oldest, default=None), min(coming, default=None)


@built_once
def _counting(spec: ClaimSpec, writer: Writer) -> Any:
    """Count the due jobs of a level, up to a limit; read the oldest, and the next."""
    mapping, ready = spec.mapping, ReadyRows(spec, writer.database)

    def hinted(statement: Any) -> Any:
        """Bind a SELECT to the claim index, where that has the queue's jobs in their order."""
        return ready.by_claim_index(statement) if spec.in_index_order else statement

    coming = null()
    if by_time := mapping.has("run_at") and spec.own_order:
        run_at = mapping.attribute("run_at")
        later = ready.select(run_at, plain=True, due=False).where(run_at > utc_now())
        coming = hinted(later.limit(1)).scalar_subquery()
    due = ready.select(*mapping.key_attributes, _since(spec).label("since"), plain=True)
    # In the order of the primary key PostgreSQL might walk over all rows.
    due = hinted(due if by_time else due.order_by(None)).subquery("sa_jobqueue_due")
    counting: Any = select(func.count(), func.min(due.c.since), coming, utc_now())
    return counting.select_from(due)


def _since(spec: ClaimSpec) -> Any:
    """The time from which on a job waits; NULL: the class has no such column."""
    mapping = spec.mapping
    if mapping.has("run_at"):
        run_at = mapping.attribute("run_at")
        return case((run_at >= KNOWN_SINCE, run_at))
    name = mapping.args.enqueued_at
    return null() if name is None else getattr(mapping.entity, name)


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
