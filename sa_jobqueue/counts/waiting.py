"""The jobs that wait: how many are due, since when, and when the next will be.

As a claim does, it steps from level to level of the claim index (round and priority), and
reads only the due entries of each: jobs that are due later are not walked over.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import case, func, null, select

from ..dialects.clock import EPOCH, as_utc, utc_now
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from .count import MOST, Count

#: So many rounds and priorities of a queue are looked at.
LEVELS = 20

#: An earlier time is the constant of an INSERT in plain SQL, and tells nothing.
KNOWN_SINCE = EPOCH + timedelta(days=2)


def read_waiting(
    spec: ClaimSpec, writer: Writer
) -> tuple[Count, timedelta | None, datetime | None]:
    """Count the due jobs, level after level; read since when one is due, and when the next is."""
    levels = list(islice(each_level(ReadyRows(spec, writer.database), writer), LEVELS + 1))
    found, oldest, coming = 0, list[timedelta](), list[datetime]()
    for level in levels[:LEVELS]:
        left = {"sa_jobqueue_limit": max(MOST + 1 - found, 0)}
        row = writer.rows(_counting(spec, writer), level | left).one()
        count, since, next_due, now = tuple(row)
        found += count
        oldest += [] if since is None else [as_utc(now) - as_utc(since)]
        coming += [] if next_due is None else [as_utc(next_due)]
    due = Count.up_to(MOST, found, more=len(levels) > LEVELS)
    return due, max(oldest, default=None), min(coming, default=None)


def each_level(ready: ReadyRows, writer: Writer) -> Iterator[dict[str, Any]]:
    """Yield the levels of a queue; one without parameters where it has none."""
    return ready.levels.each(writer) if ready.spec.levels else iter([{}])


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
