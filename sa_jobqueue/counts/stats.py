"""overview(): how full queues are, how late, what failed, and who works on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.orm import Session

from ..model.beside import CONTROL, beside
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import CANCELLED, FAILED, JobStatus
from ..owners.alive import OwnerState
from ..sessions.writer import AnySession, Writer, writing
from .count import Count, Counted, count_rows
from .finishes import finish_rate, rated_words
from .jobs import count_unsuccessful
from .schema import has_table
from .waiting import read_waiting

if TYPE_CHECKING:
    from ..control import ControlTables, WorkerInfo


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
        rate: finishes per second in the last five minutes; None: there were none, done rows are
            deleted, or no index finds them.
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
    spec, mapping = queue.spec, queue.mapping
    with writing(session, mapping, reads=True) as writer:
        words = rated_words(queue, writer)
        control = _controls_of(mapping, writer.connection, controls)
        sorting = not spec.in_index_order
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            waiting = read_waiting(spec, writer)
            return QueueStats(
                name=queue.name,
                due=waiting.due,
                oldest=waiting.oldest,
                next_due=waiting.next_due,
                claimed=_count_claimed(queue, writer),
                failed=count_unsuccessful(spec, writer, FAILED),
                cancelled=count_unsuccessful(spec, writer, CANCELLED),
                rate=finish_rate(queue, writer, words),
                paused=None if control is None else control.pauses.get(queue.name),
                workers=None if control is None else control.workers_of(queue.name),
            )


def _count_claimed(queue: Counted, writer: Writer) -> Count:
    spec, mapping = queue.spec, queue.mapping
    keys: Any = select(*mapping.key_attributes)
    return count_rows(writer, keys.where(mapping.has_status(*spec.in_progress), *spec.where))


@dataclass(frozen=True)
class _Controls:
    """What the control tables tell of all queues."""

    pauses: dict[str, datetime]
    workers: list[WorkerInfo]

    def workers_of(self, name: str) -> tuple[WorkerInfo, ...]:
        return tuple(worker for worker in self.workers if name in worker.queues)


def _controls_of(
    mapping: QueueMapping, connection: Connection, read: dict[Any, _Controls | None]
) -> _Controls | None:
    """Read the control tables beside a queue, once for all queues; None: they are not there."""
    tables: ControlTables | None = beside(mapping, CONTROL)
    if tables not in read:
        read[tables] = None if tables is None else _read_controls(tables, connection)
    return read[tables]


def _read_controls(tables: ControlTables, connection: Connection) -> _Controls | None:
    if not (has_table(connection, tables.workers) and has_table(connection, tables.pauses)):
        return None
    from ..control import paused, workers  # for those who have the tables

    # The caller's session may be unable to tell where these tables are.
    with Session(connection, join_transaction_mode="rollback_only") as session:
        pauses = {pause.queue: pause.since for pause in paused(session, tables=tables)}
        return _Controls(pauses, workers(session, tables=tables))


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
