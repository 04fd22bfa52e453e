"""What a queue looks like: counts by status, waiting age, claims per owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute

from ..dialects.clock import EPOCH, as_utc, utc_now
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import JobStatus
from ..sessions.writer import AnySession, Writer, writing


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment.

    A job is unclaimed in whichever status it waits for a claim, and claimed in
    whichever somebody has it: those of ``__queue_args__`` too.

    Attributes:
        depth: unclaimed jobs that are due.
        scheduled: unclaimed jobs whose time has not come.
        oldest_waiting: how long the longest waiting due job waits, by run_at or
            the ``enqueued_at`` column; None where neither tells.
        claimed: claimed jobs per owner.
    """

    depth: int
    scheduled: int
    oldest_waiting: timedelta | None
    claimed: dict[str, int]


def count_by_status(session: AnySession, entity: type[Any]) -> dict[str, int]:
    """Count the jobs of each status, in the table's own words; statuses without jobs are 0."""
    mapping = mapping_of(entity)
    status = mapping.attribute("status")
    with writing(session, mapping) as writer:
        found = writer.orm(select(status, func.count()).group_by(status)).all()
    known = (*map(mapping.word, JobStatus), *mapping.ready, *mapping.during)
    counts = dict.fromkeys(known, 0)
    counts.update(dict(map(tuple, found)))
    return counts


def queue_stats(session: AnySession, entity: type[Any]) -> QueueStats:
    """Describe the queue as it is now; reads all unclaimed and claimed rows once."""
    mapping = mapping_of(entity)
    with writing(session, mapping) as writer:
        waiting = _unclaimed(writer, mapping, due=True)
        return QueueStats(
            depth=waiting,
            scheduled=_unclaimed(writer, mapping, due=False),
            oldest_waiting=_oldest_waiting(writer, mapping) if waiting else None,
            claimed=_claimed(writer, mapping),
        )


def _unclaimed(writer: Writer, mapping: QueueMapping, *, due: bool) -> int:
    criteria = [mapping.has_status(*mapping.ready)]
    if mapping.has("run_at"):
        run_at = mapping.attribute("run_at")
        criteria.append(run_at <= utc_now() if due else run_at > utc_now())
    elif not due:
        return 0
    counted = writer.orm(select(func.count(mapping.key_attributes[0])).where(*criteria))
    return int(counted.scalar_one())


def _oldest_waiting(writer: Writer, mapping: QueueMapping) -> timedelta | None:
    since: InstrumentedAttribute[datetime]
    if mapping.args.enqueued_at is not None:
        since = getattr(mapping.entity, mapping.args.enqueued_at)
    elif mapping.has("run_at"):
        since = mapping.attribute("run_at")
    else:
        return None
    unclaimed = mapping.has_status(*mapping.ready)
    known = since >= EPOCH + timedelta(days=2)  # the constant of plain SQL inserts is no time
    ages = select(utc_now().label("now"), func.min(since).label("oldest"))
    found = writer.orm(ages.where(unclaimed, known, since <= utc_now())).one()
    return None if found.oldest is None else as_utc(found.now) - as_utc(found.oldest)


def _claimed(writer: Writer, mapping: QueueMapping) -> dict[str, int]:
    owner = mapping.attribute("owner")
    claimed = mapping.has_status(*mapping.during)
    found = writer.orm(select(owner, func.count()).where(claimed).group_by(owner)).all()
    return dict(map(tuple, found))
