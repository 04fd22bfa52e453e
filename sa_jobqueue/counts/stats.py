"""overview(): how full queues are, how late, what failed, and who works on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, func, select
from sqlalchemy.orm import Session

from ..databases.clock import as_utc, utc_now
from ..model.keys import CONTROL, beside, plain_queue, queue_name
from ..model.mapping import QueueMapping, mapping_of, word_of
from ..model.status import CANCELLED, DONE, FAILED, JobStatus
from ..owners.alive import OwnerState
from ..sessions.writer import AnySession, Writer, built_once, writing
from ..strategies import ClaimSpec
from .behind import count_behind
from .count import (
    MOST,
    Count,
    count_of,
    counting,
    counting_due,
    finds_newest,
    has_table,
    read_waiting,
    spec_of,
    waiting_of,
)
from .jobs import counting_unsuccessful

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
        due: the jobs that can be claimed now, as far as their keys tell.
        oldest: for how long the oldest of those that were counted has been due, by run_at, or
            by the ``enqueued_at`` column. None: none is due, or the class has neither.
        next_due: when the next of the others is due; None: there is none.
        claimed: the jobs that are claimed; claims that write nothing are not seen.
        failed: the jobs that failed; None: no index finds them.
        cancelled: the jobs that were cancelled; None: no index finds them.
        rate: jobs completed per second in the last five minutes; None: done rows are deleted, or
            no index finds them.
        paused: since when it is paused; None: it is not, or there are no control tables.
        workers: the workers that have the queue, dead ones too; None: there are no control
            tables.
        behind: the other due jobs, which wait behind others of their key; None: there are no
            ``serial_by`` and ``limit_by``.
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
    behind: Count | None = None

    @property
    def waiting(self) -> Count:
        """The due jobs with those that wait behind others of their key."""
        return Count(self.due.number + (self.behind.number if self.behind else 0), self.due.more)

    @property
    def worries(self) -> list[str]:
        """What is wrong with the queue, in words."""
        states = [worker.state for worker in self.workers or ()]
        dead, stuck = states.count(OwnerState.DEAD), states.count(OwnerState.STUCK)
        nobody = self.workers is not None and len(states) == dead and self.waiting.number
        told = {
            f"{self.failed} failed": self.failed and self.failed.number,
            f"{dead} dead worker{'s' * (dead != 1)}": dead,
            f"{stuck} stuck worker{'s' * (stuck != 1)}": stuck,
            "no worker": nobody and not self.paused,
            "paused": self.paused,
        }
        return [text for text, is_so in told.items() if is_so]


def overview(session: AnySession, queues: Iterable[Any]) -> list[QueueStats]:
    """Describe queues as they are now, in their order.

    Args:
        session: the caller's; nothing is written or committed.
        queues: mapped classes, JobQueues or steps of workflows.

    Raises:
        ArgumentError: something is no queue.
    """
    asked, found = list(queues), dict[int, QueueStats]()
    together: dict[Any, list[int]] = {}
    for place, queue in enumerate(asked):
        spec = spec_of(queue)
        with writing(session, spec.mapping, reads=True) as writer:
            key = (writer.connection, spec.in_index_order)
            together.setdefault(key, []).append(place)
    for places in together.values():
        seen = _described(session, [asked[place] for place in places])
        found.update(zip(places, seen, strict=True))
    return [found[place] for place in range(len(asked))]


def stats(session: AnySession, entity: type[Any]) -> QueueStats:
    """Describe the queue of a class as it is now, by indexes alone: counts end at 10,000."""
    return overview(session, [mapping_of(entity).entity])[0]


def count_by_status(session: AnySession, entity: type[Any]) -> dict[str, int]:
    """Count the jobs of each status, in the table's own words; statuses without jobs are 0.

    It is exact, and reads all rows: :func:`sa_jobqueue.stats` does not.
    """
    mapping = mapping_of(entity)
    known = (*map(mapping.word, JobStatus), *mapping.ready, *mapping.during, *mapping.waiting)
    return {**dict.fromkeys(known, 0), **count_jobs(session, mapping)}


def count_statuses(
    session: AnySession, entity: type[Any], words: Iterable[str]
) -> dict[str, Count | None]:
    """Count the jobs of some statuses, up to 10,000 of each; None: no index finds them."""
    spec = spec_of(entity)
    mapping = spec.mapping
    ends = {mapping.word(status): status for status in (FAILED, CANCELLED)}
    with writing(session, mapping, reads=True) as writer:
        found: dict[str, Any] = {}
        for word in words:
            of_word: Any = select(*mapping.key_attributes).where(mapping.has_status(word))
            if word in ends:
                found[word] = counting_unsuccessful(spec, writer, ends[word])
            elif word in (*mapping.ready, *mapping.during) or finds_newest(writer, mapping, word):
                found[word] = counting(of_word)
            else:
                found[word] = None
        with writer.database.without_table_scans(writer.connection):
            return {
                word: None if figure is None else count_of(writer.rows(figure).scalar_one())
                for word, figure in found.items()
            }


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


def _described(session: AnySession, queues: Sequence[Any]) -> list[QueueStats]:
    """Describe queues that one connection reads, and that are sorted alike."""
    specs = [spec_of(queue) for queue in queues]
    with writing(session, specs[0].mapping, reads=True) as writer:
        controls = {
            tables: _read_controls(tables, writer.connection)
            for tables in {beside(spec.mapping, CONTROL) for spec in specs}
        }
        sorting = not specs[0].in_index_order
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            waiting = [read_waiting(spec, writer) if spec.levels else None for spec in specs]
            counted = _read_figures(writer, queues)
            held_back = [count_behind(spec, writer) if spec.key_limit else None for spec in specs]
        found: list[QueueStats] = []
        for queue, spec, waits, counts, behind in zip(
            queues, specs, waiting, counted, held_back, strict=True
        ):
            name = queue_name(queue)
            pauses, workers = controls[beside(spec.mapping, CONTROL)] or ({}, None)
            ours = None if workers is None else tuple(it for it in workers if name in it.queues)
            due, oldest, next_due = waits or waiting_of([counts["due"]])
            found.append(
                QueueStats(
                    name=name,
                    due=Count(max(due.number - (behind or 0), 0), due.more),
                    oldest=oldest,
                    next_due=next_due,
                    claimed=count_of(counts["claimed"][0]),
                    failed=count_of(counts["failed"][0]) if "failed" in counts else None,
                    cancelled=count_of(counts["cancelled"][0]) if "cancelled" in counts else None,
                    rate=_rate_of(*counts["finished"]) if "finished" in counts else None,
                    paused=pauses.get(name),
                    workers=ours,
                    behind=None if behind is None else Count(behind, due.more),
                )
            )
        return found


#: So many rows are read by one statement. MySQL joins 61 tables at most.
TOGETHER = 50


def _read_figures(writer: Writer, queues: Sequence[Any]) -> list[dict[str, Sequence[Any]]]:
    """Read the figures of all queues by a few statements, each of which joins rows."""
    found: list[dict[str, Sequence[Any]]] = [{} for _ in queues]
    asked = [
        (place, name, figure)
        for place, queue in enumerate(queues)
        for name, figure in _figures(spec_of(queue), writer, _word_of_done(queue)).items()
    ]
    for begin in range(0, len(asked), TOGETHER):
        batch = asked[begin : begin + TOGETHER]
        parts = [
            figure.subquery(f"sa_jobqueue_{number}") for number, (*_, figure) in enumerate(batch)
        ]
        # Two counts are never negative. At a join without a comparison SQLAlchemy warns on MySQL.
        joined: Any = parts[0]
        for before, part in pairwise(parts):
            joined = joined.join(part, before.c[0] >= -part.c[0])
        columns = [column for part in parts for column in part.c]
        statement: Any = select(*columns).select_from(joined)
        values = iter(writer.rows(statement, {"sa_jobqueue_limit": MOST + 1}).one())
        for (place, name, _), part in zip(batch, parts, strict=True):
            found[place][name] = list(islice(values, len(part.c)))
    return found


def _word_of_done(queue: Any) -> str:
    """Return the status of the queue's finished jobs."""
    then = DONE if isinstance(queue, type) else plain_queue(queue).then
    return word_of(spec_of(queue).mapping, then)


@built_once
def _figures(spec: ClaimSpec, writer: Writer, done: str) -> dict[str, Any]:
    """Return SELECTs of one row each, by the names of figures; what no index finds has none."""
    keys: Any = select(*spec.mapping.key_attributes)
    claimed = keys.where(spec.mapping.has_status(*spec.in_progress), *spec.where)
    found = {
        "due": None if spec.levels else counting_due(spec, writer),
        "claimed": counting(claimed),
        "failed": counting_unsuccessful(spec, writer, FAILED),
        "cancelled": counting_unsuccessful(spec, writer, CANCELLED),
        "finished": _counting_finished(spec, writer, done),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


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
    waiting = seen.waiting.number
    if not waiting:
        return 0
    alive = sum(worker.state is not OwnerState.DEAD for worker in seen.workers or ())
    if not alive or not seen.rate:
        return None
    return math.ceil(waiting / (seen.rate / alive * within.total_seconds()))


# -- how fast jobs are finished -----------------------------------------------

# A finished row keeps the time of its finish in owner_date. So the newest finishes of a status are
# one end of an index (status, owner_date), and no other rows are read. On MySQL and MariaDB the
# reap index is such an index. On PostgreSQL and SQLite the reap index holds claimed rows only, and
# the table needs another index: see docs/recipes.md. Without an index there is no rate, since
# the done rows of years would be read.


def _counting_finished(spec: ClaimSpec, writer: Writer, word: str) -> Any:
    """Count the last finishes, read the oldest of them and the time; None: no index."""
    mapping = spec.mapping
    if not (mapping.args.keep and finds_newest(writer, mapping, word)):
        return None
    date = mapping.attribute("owner_date")
    age = bindparam("sa_jobqueue_age", -(RECENT // timedelta(microseconds=1)), type_=BigInteger)
    done = mapping.has_status(word)
    recent = select(date.label("date")).where(done, date > utc_now(age), *spec.where)
    newest = recent.order_by(date.desc()).limit(MOST).subquery("sa_jobqueue_newest")
    return select(func.count(), func.min(newest.c.date), utc_now()).select_from(newest)


def _rate_of(count: int, oldest: datetime | None, now: datetime) -> float:
    """Return the jobs completed per second lately."""
    # If there are more, the newest tell the rate as well: a queue that finishes 10,000 jobs in a
    # minute is measured by that minute.
    time = RECENT
    if count >= MOST and oldest is not None:
        time = min(as_utc(now) - as_utc(oldest), RECENT)
    return count / max(time, timedelta(milliseconds=1)).total_seconds()
