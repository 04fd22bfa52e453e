"""What a queue looks like: counts by status, the oldest unclaimed job, claims per owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.orm import InstrumentedAttribute

from ..dialects import dialect_of
from ..dialects.clock import as_utc, naive_utc_now, utc_now
from ..model.mapping import QueueMapping, mapping_of
from ..model.microseconds import has_no_zone
from ..model.status import JobStatus
from ..sessions.writer import AnySession, Writer, writing


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment.

    Attributes:
        depth: unclaimed jobs that are due.
        scheduled: unclaimed jobs whose run_at has not come.
        oldest_waiting: for how long the oldest due job has been due, by run_at or the
            ``enqueued_at`` column; None where the class has neither, or no job is due.
        claimed: claimed jobs per owner.
    """

    depth: int
    scheduled: int
    oldest_waiting: timedelta | None
    claimed: dict[str, int]


@dataclass(frozen=True)
class Counted:
    """Which jobs are counted.

    Attributes:
        ready, during: the statuses of unclaimed and of claimed jobs.
        where: criteria that each job fulfils, joined by AND.
    """

    mapping: QueueMapping
    ready: tuple[str, ...]
    during: tuple[str, ...]
    where: tuple[ColumnElement[bool], ...] = ()

    @property
    def unclaimed(self) -> list[ColumnElement[bool]]:
        """The criteria of unclaimed jobs."""
        return [self.mapping.has_status(*self.ready), *self.where]

    @property
    def claimed(self) -> list[ColumnElement[bool]]:
        """The criteria of claimed jobs."""
        return [self.mapping.has_status(*self.during), *self.where]


def count_by_status(session: AnySession, entity: type[Any]) -> dict[str, int]:
    """Count the jobs of each status, in the table's own words; statuses without jobs are 0."""
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


def stats(session: AnySession, entity: type[Any]) -> QueueStats:
    """Describe the queue as it is now; reads all unclaimed and claimed rows once.

    Jobs in any status that ``__queue_args__`` lists in ``ready`` count as unclaimed, and those
    in any that it lists in ``during`` as claimed.
    """
    mapping = mapping_of(entity)
    return stats_of(session, Counted(mapping, mapping.ready, mapping.during))


def stats_of(session: AnySession, counted: Counted) -> QueueStats:
    """Describe the jobs that are counted; see :func:`stats`."""
    with writing(session, counted.mapping, reads=True) as writer:
        due = _count(writer, counted, due=True)
        return QueueStats(
            depth=due,
            scheduled=_count(writer, counted, due=False),
            oldest_waiting=_oldest_waiting(writer, counted) if due else None,
            claimed=_by_owner(writer, counted),
        )


def _count(writer: Writer, counted: Counted, *, due: bool) -> int:
    mapping, criteria = counted.mapping, counted.unclaimed
    if mapping.has("run_at"):
        run_at = mapping.attribute("run_at")
        criteria.append(run_at <= utc_now() if due else run_at > utc_now())
    elif not due:
        return 0
    counting = select(func.count(mapping.key_attributes[0])).where(*criteria)
    return int(writer.orm(counting).scalar_one())


def _oldest_waiting(writer: Writer, counted: Counted) -> timedelta | None:
    mapping = counted.mapping
    since: InstrumentedAttribute[datetime]
    if mapping.args.enqueued_at is not None:
        since = getattr(mapping.entity, mapping.args.enqueued_at)
    elif mapping.has("run_at"):
        since = mapping.attribute("run_at")
    else:
        return None
    now = naive_utc_now() if has_no_zone(since.type, dialect_of("postgresql")) else utc_now()
    known = since >= literal_column("'1970-01-03'")  # the constant of plain SQL inserts is no time
    ages = select(now.label("now"), func.min(since).label("oldest"))
    found = writer.orm(ages.where(*counted.unclaimed, known, since <= now)).one()
    return None if found.oldest is None else as_utc(found.now) - as_utc(found.oldest)


def _by_owner(writer: Writer, counted: Counted) -> dict[str, int]:
    owner = counted.mapping.attribute("owner")
    counting = select(owner, func.count()).where(*counted.claimed).group_by(owner)
    return dict(map(tuple, writer.orm(counting).all()))
