"""overview(): how full queues are, how late, what failed, and who works on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from ..model.beside import CONTROL, beside
from ..model.queue_name import queue_name
from ..model.status import CANCELLED, FAILED
from ..owners.alive import OwnerState
from ..queue import JobQueue
from ..queue_position.finish_rate import RECENT, Finishes
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from .count import Count, count_rows
from .failed import count_unsuccessful
from .queue import job_queue_of
from .schema import has_table, indexes_of
from .waiting import read_waiting

if TYPE_CHECKING:
    from ..control import ControlTables, WorkerInfo


@dataclass(frozen=True)
class QueueOverview:
    """A queue at one moment.

    Attributes:
        name: as ``sa_jobqueue.control`` names it, such as ``email``.
        due: the jobs that can be claimed now.
        oldest: for how long the oldest of them has been due, by run_at; without run_at, by
            the ``enqueued_at`` column of those that were counted. None: none is due, or the
            class has neither.
        next_due: when the next of the others is due; None: there is none.
        claimed: the jobs that are claimed; claims that write nothing are not seen.
        failed: the jobs that failed; None: no index finds them.
        cancelled: the jobs that were cancelled; None: no index finds them.
        rate: finishes per second in the last minutes; None: there were none, or no index
            finds them.
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


def overview(session: AnySession, queues: Iterable[Any]) -> list[QueueOverview]:
    """Describe queues as they are now, in their order.

    Args:
        session: the caller's; nothing is written or committed.
        queues: mapped classes, JobQueues or steps of workflows.

    Raises:
        ArgumentError: something is no queue.
    """
    controls = _Controls()
    return [_overview(session, job_queue_of(queue), controls) for queue in queues]


def _overview(session: AnySession, queue: JobQueue[Any], controls: _Controls) -> QueueOverview:
    spec, mapping = queue.plan.spec, queue.mapping
    with writing(session, mapping, reads=True) as writer:
        rated = _rated(writer, queue)
        paused, workers = controls.of(queue, writer.connection)
        sorting = not spec.in_index_order
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            waiting = read_waiting(spec, writer)
            return QueueOverview(
                name=queue_name(queue),
                due=waiting.due,
                oldest=waiting.oldest,
                next_due=waiting.next_due,
                claimed=_count_claimed(spec, writer),
                failed=count_unsuccessful(spec, writer, FAILED),
                cancelled=count_unsuccessful(spec, writer, CANCELLED),
                rate=_rate(writer, queue, rated),
                paused=paused,
                workers=workers,
            )


def _count_claimed(spec: ClaimSpec, writer: Writer) -> Count:
    mapping = spec.mapping
    keys: Any = select(*mapping.key_attributes).where(
        mapping.has_status(*spec.in_progress), *spec.where
    )
    return count_rows(writer, keys)


def _rated(writer: Writer, queue: JobQueue[Any]) -> list[str]:
    """List the finished statuses whose newest rows an index finds."""
    if not queue.mapping.args.keep:
        return []
    return Finishes(queue.plan.spec, queue.then).words(indexes_of(writer, queue.mapping))


def _rate(writer: Writer, queue: JobQueue[Any], words: list[str]) -> float | None:
    return Finishes(queue.plan.spec, queue.then).rate_by(writer, words, RECENT)


class _Controls:
    """What the control tables tell, read once for each set of tables."""

    def __init__(self) -> None:
        self._read: dict[Any, tuple[dict[str, datetime], list[WorkerInfo]] | None] = {}

    def of(
        self, queue: JobQueue[Any], connection: Connection
    ) -> tuple[datetime | None, tuple[WorkerInfo, ...] | None]:
        """Return since when a queue is paused, and its workers."""
        tables: ControlTables | None = beside(queue.mapping, CONTROL)
        if tables is None:
            return None, None
        if tables not in self._read:
            self._read[tables] = _ask(tables, connection)
        read = self._read[tables]
        if read is None:
            return None, None
        pauses, workers = read
        name = queue_name(queue)
        return pauses.get(name), tuple(worker for worker in workers if name in worker.queues)


def _ask(
    tables: ControlTables, connection: Connection
) -> tuple[dict[str, datetime], list[WorkerInfo]] | None:
    """Read the control tables; None: they are not there yet."""
    if not (has_table(connection, tables.workers) and has_table(connection, tables.pauses)):
        return None
    from ..control import paused, workers  # for those who have the tables

    # The caller's session may be unable to tell where these tables are.
    with Session(connection, join_transaction_mode="rollback_only") as session:
        pauses = {pause.queue: pause.since for pause in paused(session, tables=tables)}
        return pauses, workers(session, tables=tables)


def workers_needed(seen: QueueOverview, within: timedelta) -> int | None:
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
