"""overview(): how full queues are, how late, what failed, and who works on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, func, select
from sqlalchemy.orm import Session

from ..dialects.clock import as_utc, utc_now
from ..model.keys import CONTROL, beside
from ..model.mapping import QueueMapping, mapping_of, word_of
from ..model.status import CANCELLED, FAILED, JobStatus
from ..owners.alive import OwnerState
from ..sessions.writer import AnySession, Writer, writing
from .count import MOST, Count, Counted, count_rows, has_newest, has_table, read_waiting
from .jobs import count_unsuccessful

#: How far back finishes are counted.
RECENT = timedelta(minutes=5)

if TYPE_CHECKING:
    from ..control import ControlTables, WorkerInfo

    _Controls = tuple[dict[str, datetime], list[WorkerInfo]]


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment.

    Attributes:
        name: as ``sa_jobqueue.control`` names it, such as ``email``.
        due: the jobs that can be claimed now.
        oldest: for how long the oldest of those that were counted has been due, by run_at, or
            by the ``enqueued_at`` column. None: none is due, or the class has neither.
        next_due: when the next of the others is due; None: there is none.
        claimed: the jobs that are claimed; claims that write nothing are not seen.
        failed: the jobs that failed; None: no index finds them.
        cancelled: the jobs that were cancelled; None: no index finds them.
        rate: jobs completed per second in the last five minutes; None: there were none, done rows
            are deleted, or no index finds them.
        paused: since when it is paused; None: it is not, or there are no control tables.
        workers: the workers that have the queue, dead ones too; None: there are no control
            tables.
    """

    name: str
    due: Count
    oldest: timedelta | None
    next_due: datetime | None
    claimed: Count
    failed: Count | None
    cancelled: Count | None
    rate: float | None
    paused: datetime | None
    workers: tuple[WorkerInfo, ...] | None


def overview(session: AnySession, queues: Iterable[Any]) -> list[QueueStats]:
    """Describe queues as they are now, in their order.

    Args:
        session: the caller's; nothing is written or committed.
        queues: mapped classes, JobQueues or steps of workflows.

    Raises:
        ArgumentError: something is no queue.
    """
    controls: dict[Any, _Controls | None] = {}
    return [_described(session, Counted.of(queue), controls) for queue in queues]


def stats(session: AnySession, entity: type[Any]) -> QueueStats:
    """Describe the queue of a class as it is now, by indexes alone: counts end at 10,000."""
    return overview(session, [mapping_of(entity).entity])[0]


def count_by_status(session: AnySession, entity: type[Any]) -> dict[str, int]:
    """Count the jobs of each status, in the table's own words; statuses without jobs are 0.

    It is exact, and reads all rows: :func:`sa_jobqueue.stats` does not.
    """
    mapping = mapping_of(entity)
    known = (*map(mapping.word, JobStatus), *mapping.ready, *mapping.during)
    return {**dict.fromkeys(known, 0), **count_jobs(session, mapping)}


def count_jobs(
    session: AnySession, mapping: QueueMapping, *where: ColumnElement[bool]
) -> dict[str, int]:
    """Count the jobs that fulfil the criteria, by status; statuses without jobs are left out.

    A row whose status is NULL is no job.
    """
    status = mapping.attribute("status")
    counting = select(mapping.status_word, func.count()).where(status.is_not(None), *where)
    counting = counting.group_by(status)
    with writing(session, mapping, reads=True) as writer:
        return dict(map(tuple, writer.orm(counting).all()))


def _described(
    session: AnySession, queue: Counted, controls: dict[Any, _Controls | None]
) -> QueueStats:
    spec, mapping = queue.spec, queue.spec.mapping
    with writing(session, mapping, reads=True) as writer:
        rated = has_rate(queue, writer)
        tables = beside(mapping, CONTROL)
        if tables not in controls:
            controls[tables] = _read_controls(tables, writer.connection)
        pauses, workers = controls[tables] or ({}, None)
        ours = None if workers is None else tuple(it for it in workers if queue.name in it.queues)
        sorting = not spec.in_index_order
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            due, oldest, next_due = read_waiting(spec, writer)
            keys: Any = select(*mapping.key_attributes)
            claimed = keys.where(mapping.has_status(*spec.in_progress), *spec.where)
            return QueueStats(
                name=queue.name,
                due=due,
                oldest=oldest,
                next_due=next_due,
                claimed=count_rows(writer, claimed),
                failed=count_unsuccessful(spec, writer, FAILED),
                cancelled=count_unsuccessful(spec, writer, CANCELLED),
                rate=finish_rate(queue, writer) if rated else None,
                paused=pauses.get(queue.name),
                workers=ours,
            )


def _read_controls(tables: ControlTables | None, connection: Connection) -> _Controls | None:
    """Read the pauses and workers of all queues; None: the tables are not there."""
    if tables is None:
        return None
    if not (has_table(connection, tables.workers) and has_table(connection, tables.pauses)):
        return None
    from ..control import paused, workers  # for those who have the tables

    # The caller's session may be unable to tell where these tables are.
    with Session(connection, join_transaction_mode="rollback_only") as session:
        pauses = {pause.queue: pause.since for pause in paused(session, tables=tables)}
        return pauses, workers(session, tables=tables)


def workers_needed(seen: QueueStats, within: timedelta) -> int | None:
    """Return how many workers would finish in a time what is due now, for an autoscaler.

    They are taken to be as quick as those were that have worked in the last minutes. Where more
    jobs are due than are counted, it is the number for those that are.

    Returns:
        The number of workers; 0 if nothing is due. None if nobody knows how fast a worker is,
        since there are no control tables, no worker is alive, or no job was finished lately.
    """
    if not seen.due.number:
        return 0
    alive = sum(worker.state is not OwnerState.DEAD for worker in seen.workers or ())
    if not alive or not seen.rate:
        return None
    return math.ceil(seen.due.number / (seen.rate / alive * within.total_seconds()))


# -- how fast jobs are finished -----------------------------------------------

# A finished row keeps the time of its finish in owner_date. So the newest finishes of a status are
# one end of an index (status, owner_date), and no other rows are read. On MySQL and MariaDB the
# reap index is such an index. On PostgreSQL and SQLite the reap index holds claimed rows only, and
# the table needs another index: see docs/positions.md. Without an index there is no rate, since
# the done rows of years would be read.


def has_rate(queue: Counted, writer: Writer) -> bool:
    """Tell whether done rows are kept, and an index finds the newest of them."""
    mapping = queue.spec.mapping
    return mapping.args.keep and has_newest(writer, mapping, word_of(mapping, queue.then))


def finish_rate(queue: Counted, writer: Writer) -> float | None:
    """Return the jobs completed per second; None if there were none lately."""
    mapping = queue.spec.mapping
    date = mapping.attribute("owner_date")
    age = bindparam("sa_jobqueue_age", -(RECENT // timedelta(microseconds=1)), type_=BigInteger)
    done = mapping.has_status(word_of(mapping, queue.then))
    recent = select(date.label("date")).where(done, date > utc_now(age), *queue.spec.where)
    newest = recent.order_by(date.desc()).limit(MOST).subquery("sa_jobqueue_newest")
    counting = select(func.count(), func.min(newest.c.date), utc_now()).select_from(newest)
    count, oldest, now = tuple(writer.orm(counting).one())
    # If there are more, the newest tell the rate as well: a queue that finishes 10,000 jobs in a
    # minute is measured by that minute.
    time = RECENT if count < MOST else min(as_utc(now) - as_utc(oldest), RECENT)
    return count / max(time, timedelta(milliseconds=1)).total_seconds() or None


def no_rate(mapping: QueueMapping) -> str:
    """Say that no index finds the finishes, and how to get one."""
    status, date = (mapping.column(role).name for role in ("status", "owner_date"))
    table = mapping.table.name
    return (
        f"no index finds the newest finishes of {mapping}, and without it all done rows are "
        "read. Add "
        f'Index("ix_{table}_finish", "{status}", "{date}") to its __table_args__ and to the table'
    )
