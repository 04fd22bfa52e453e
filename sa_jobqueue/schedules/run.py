"""run_due(): schedules that are due become jobs, and wait for their next ticks.

The claim of a schedule, the INSERT of its jobs and its release are one transaction. A scheduler
that is killed leaves nothing behind, and the next scheduler finds the schedule unchanged. Two
schedulers never run the same schedule, because the claim locks its row. There is no leader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import database_of, is_transient
from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.columns import error_text, first_line, in_ascii
from ..model.keys import mapping_of_queue, plain_queue, queue_name
from ..model.mapping import mapping_of
from ..process import process_name
from ..sessions.transactions import routed_to_writes
from ..sessions.writer import AnySession, session_of
from ..verbs.claim import claim
from ..verbs.enqueue import enqueue
from ..verbs.finish import release
from .table import Schedule
from .ticks import TRY_AGAIN, Cron, Missed, due_ticks
from .values import job_values

log = logging.getLogger("sa_jobqueue.schedules")


@dataclass(frozen=True)
class Ran:
    """What became of a schedule that was due.

    Attributes:
        ticks: the ticks that became jobs.
        skipped: the first missed tick that made no job; None: there was none.
        next_tick: the tick after those.
        error: why nothing was inserted; the ticks stay due. None: the jobs were inserted.
    """

    name: str
    ticks: tuple[datetime, ...]
    skipped: datetime | None
    next_tick: datetime
    error: str | None = None


def run_due(
    session: AnySession, entity: type[Schedule], queues: Iterable[Any], *, limit: int
) -> list[Ran]:
    """Run schedules that are due; see :meth:`Schedules.run_due`."""
    session = session_of(session)
    known = {queue_name(queue): plain_queue(queue) for queue in queues}
    connection = session.connection(bind_arguments=routed_to_writes(mapping_of(entity).mapper))
    if database_of(connection).in_autocommit(connection):
        raise ArgumentError(
            "a schedule's job and its next tick are one transaction: use a session that is not "
            "in AUTOCOMMIT"
        )
    of_queues = entity.queue.in_(sorted(known))
    claimed = claim(session, entity, of_queues, owner=process_name(40), limit=limit)
    if not claimed:
        return []
    now = database_now(session, entity)
    ran = [_run(session, schedule, known[schedule.queue], now) for schedule in claimed]
    release(session, claimed)  # it flushes what _run has written
    return ran


def database_now(session: Session, entity: type[Schedule]) -> datetime:
    """Return the time of the database that the schedules are written to."""
    routed = routed_to_writes(mapping_of(entity).mapper)
    return as_utc(session.execute(select(utc_now()), bind_arguments=routed).scalar_one())


def _run(session: Session, schedule: Schedule, queue: Any, now: datetime) -> Ran:
    """Insert the jobs of a claimed schedule, and write its next tick to it."""
    tick, name, failed = as_utc(schedule.next_tick), schedule.name, schedule.last_error is not None
    try:
        cron = Cron(schedule.cron, schedule.timezone)
        due = due_ticks(cron, tick, now, Missed(schedule.missed), failed=failed)
        if due.ticks:
            with session.begin_nested():
                insert_ticks(session, queue, schedule, due.ticks)
    except Exception as error:  # of any driver, or of a listener of the application
        if is_transient(error) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            raise  # the transaction is at an end
        log.error("the schedule %s inserted no job: %s", name, first_line(error))
        # The tick stays due, and does not hold up other schedules meanwhile.
        schedule.run_at = now + TRY_AGAIN
        schedule.last_error = error_text(in_ascii(error_text(error) or ""))
        return Ran(name, (), None, tick, schedule.last_error)
    schedule.run_at = schedule.next_tick = due.next
    if due.ticks or due.skipped is not None:  # else the clock was set back before a failed tick
        schedule.last_error = None
    if due.ticks:
        schedule.last_tick = due.ticks[-1]
    if due.skipped is not None:
        schedule.skipped_from, end = due.skipped, min((*due.ticks, now))
        schedule.skipped_to = end
        log.warning(
            "the schedule %s has missed its ticks from %s, before %s", name, due.skipped, end
        )
    return Ran(name, due.ticks, due.skipped, due.next)


def insert_ticks(
    session: Session, queue: Any, schedule: Schedule, ticks: Iterable[datetime | None]
) -> None:
    """Insert a job for each tick; a class with ScheduleMixin gets the tick as its run_at.

    Raises:
        ArgumentError: the values do not fit the class, which another version has declared.
    """
    mapping = mapping_of_queue(queue)
    values = job_values(mapping, schedule.values_json)
    run_at = mapping.attributes.get("run_at")
    rows = [{run_at: tick, **values} if run_at and tick else dict(values) for tick in ticks]
    if isinstance(queue, type):
        enqueue(session, queue, rows)
    else:
        queue.enqueue(session, rows)
