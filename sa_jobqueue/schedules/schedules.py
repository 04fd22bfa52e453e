"""Schedules: every method that works on schedules, by name.

When a schedule is due, its claim, the INSERT of its jobs and its release are one transaction. A
scheduler that is killed leaves nothing behind, and the next scheduler finds the schedule unchanged.
Two schedulers never run the same schedule, because the claim locks its row. There is no leader.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, MetaData, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..databases import database_of, is_transient
from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.columns import error_text, first_line, in_ascii
from ..model.keys import SCHEDULES, beside, mapping_of_queue, plain_queue, queue_name
from ..model.mapping import mapping_of
from ..model.status import UNCLAIMED, status_is
from ..process import process_name
from ..sessions.transactions import missing_tables_named, routed_to_writes
from ..sessions.writer import AnyConnection, AnySession, session_of
from ..verbs.claim import claim
from ..verbs.enqueue import enqueue
from ..verbs.finish import release
from ..verbs.manage import cancel, retry
from .declared import Declared, declaration, declare
from .table import PAUSED, Schedule, job_values, schedule_class
from .ticks import TRY_AGAIN, Cron, Missed, due_ticks

log = logging.getLogger("sa_jobqueue.schedules")

#: How many schedules a call of run_due() takes.
LIMIT = 10


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule as its row tells; see :class:`Schedule` for the attributes."""

    name: str
    queue: str
    cron: str
    timezone: str
    values: Mapping[str, Any]
    missed: Missed
    revision: int | None
    paused: bool
    next_tick: datetime
    last_tick: datetime | None
    skipped_from: datetime | None
    skipped_to: datetime | None
    last_error: str | None


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


#: Decorates a method that uses the table: without it, the method raises MissingTable.
_names_missing_table = missing_tables_named(
    lambda: [mapping_of(each).table for each in Schedule.__subclasses__()]
)


class Schedules:
    """The schedules of an application, as rows of a table in its metadata.

    No method commits. If the database does not have the table, each raises MissingTable.

    Args:
        metadata: that of the queues; ``create_all()`` and Alembic create the table.
        name: the name of the table.
        schema: by default the schema of the metadata.

    Raises:
        ArgumentError: the metadata has schedules already, or another table of this name.
    """

    def __init__(
        self, metadata: MetaData, *, name: str = "job_schedules", schema: str | None = None
    ) -> None:
        if SCHEDULES in metadata.info:
            raise ArgumentError("this metadata has schedules already: use Schedules.beside(queue)")
        self.entity: type[Schedule] = schedule_class(metadata, name, schema)
        metadata.info[SCHEDULES] = self

    @classmethod
    def beside(cls, queue: Any) -> Schedules | None:
        """Return the schedules in the metadata of a queue's table; None: there are none."""
        found: Schedules | None = beside(mapping_of_queue(queue), SCHEDULES)
        return found

    # -- what the code declares -----------------------------------------

    @_names_missing_table
    def declare(
        self, session: AnySession, queues: Iterable[Any], *, database: str | None = None
    ) -> Declared:
        """Write what ``every()`` declares for the queues to the table, once at the start.

        Each JobQueue of the same table and status counts, whichever of them is given.

        A newer revision replaces an older one, never the reverse. Schedules that are no longer
        declared are reported, and go on. A declaration that cannot be written is reported and
        logged as an error, and the others are still written.

        Args:
            database: the name of the session's database, of several; what is declared for others
                is left out.
        """
        return declare(session, self.entity, queues, database)

    @_names_missing_table
    def run_due(
        self, session: AnySession, queues: Iterable[Any], *, limit: int = LIMIT
    ) -> list[Ran]:
        """Insert the jobs of schedules that are due, and let these wait for their next ticks.

        Then commit: the jobs and the next ticks are one transaction. Any number of schedulers may
        call this at once. Schedules of other queues are left alone.

        Args:
            queues: JobQueues, into which the jobs are inserted; AsyncJobQueues, steps of a
                workflow, or mapped classes, are taken, too.
            limit: the most schedules for this call; call again while it returns as many.

        Raises:
            ArgumentError: the session is in AUTOCOMMIT.
            DBAPIError: a transient error of the database; the whole transaction is rolled back.
        """
        session = session_of(session)
        known = {queue_name(queue): plain_queue(queue) for queue in queues}
        connection = session.connection(bind_arguments=self._route)
        if database_of(connection).in_autocommit(connection):
            raise ArgumentError(
                "a schedule's job and its next tick are one transaction: use a session that is not "
                "in AUTOCOMMIT"
            )
        of_queues = self.entity.queue.in_(sorted(known))
        claimed = claim(session, self.entity, of_queues, owner=process_name(40), limit=limit)
        if not claimed:
            return []
        now = self._now(session)
        ran = [_run(session, schedule, known[schedule.queue], now) for schedule in claimed]
        release(session, claimed)  # it flushes what _run has written
        return ran

    @_names_missing_table
    def due_in(self, session: AnyConnection, queues: Iterable[Any]) -> timedelta | None:
        """Return the time until run_due() has something to do, by the database's clock.

        Zero or less: something is due. None: these queues have no schedules, or only paused
        schedules. This is a plain read.
        """
        mapping = mapping_of(self.entity)
        run_at = mapping.column("run_at")
        first = select(func.min(run_at), utc_now()).where(
            status_is(mapping.column("status"), mapping.word(UNCLAIMED)),
            mapping.table.c.queue.in_([queue_name(queue) for queue in queues]),
        )
        on = session if isinstance(session, Connection) else session_of(session)
        due_at, now = on.execute(first).one()
        return None if due_at is None else as_utc(due_at) - as_utc(now)

    # -- rows at run time -----------------------------------------------

    @_names_missing_table
    def add(
        self,
        session: AnySession,
        name: str,
        queue: Any,
        cron: str,
        *,
        timezone: str = "UTC",
        values: Mapping[str, Any] | None = None,
        missed: str = Missed.ONCE,
    ) -> None:
        """Make a schedule at run time; the arguments are those of ``every()``.

        Args:
            queue: where its jobs are inserted; a mapped class stands for its queue.

        Raises:
            ArgumentError: the arguments make no schedule, or cronsim is not installed.
            IntegrityError: there is a schedule of this name.
        """
        given = declaration(name, queue, cron, timezone=timezone, values=values, missed=missed)
        session = session_of(session)
        tick = Cron(cron, timezone).after(self._now(session))
        entity: Any = self.entity  # its constructor is that of the declarative base
        session.add(entity(next_tick=tick, run_at=tick, **given.row))
        session.flush()

    @_names_missing_table
    def remove(self, session: AnySession, name: str) -> None:
        """Delete a schedule.

        Raises:
            ArgumentError: there is none of this name.
        """
        session = session_of(session)
        session.delete(self._row(session, name))
        session.flush()

    @_names_missing_table
    def pause(self, session: AnySession, name: str) -> bool:
        """Pause a schedule; return whether this changed anything.

        Raises:
            ArgumentError: there is none of this name.
        """
        return bool(cancel(session, self._row(session, name)))

    @_names_missing_table
    def resume(self, session: AnySession, name: str) -> bool:
        """Resume a schedule; return whether it was paused.

        The ticks during the pause were missed; ``missed`` decides what becomes of them.

        Raises:
            ArgumentError: there is none of this name.
        """
        return bool(retry(session, self._row(session, name)))

    @_names_missing_table
    def run_now(self, session: AnySession, name: str, queue: Any) -> None:
        """Insert a job of a schedule now; its ticks stay as they are.

        Raises:
            ArgumentError: there is no schedule of this name, it is one of another queue, or its
                values do not fit the class of the queue.
        """
        session, row = session_of(session), self._row(session, name)
        if row.queue != queue_name(queue):
            raise ArgumentError(
                f"{name!r} is a schedule of {row.queue!r}, not of {queue!r}: give that queue"
            )
        insert_ticks(session, plain_queue(queue), row, [None])

    @_names_missing_table
    def all(self, session: AnySession) -> list[ScheduleInfo]:
        """List the schedules by name."""
        rows = select(self.entity).order_by(self.entity.name)
        found = session_of(session).scalars(rows.execution_options(populate_existing=True))
        return [_info(row) for row in found]

    @property
    def _route(self) -> dict[str, Any]:
        return routed_to_writes(mapping_of(self.entity).mapper)

    def _now(self, session: Session) -> datetime:
        """Return the time of the database that the schedules are written to."""
        return as_utc(session.execute(select(utc_now()), bind_arguments=self._route).scalar_one())

    def _row(self, session: AnySession, name: str) -> Schedule:
        found = session_of(session).get(self.entity, name, populate_existing=True)
        if found is None:
            raise ArgumentError(f"there is no schedule {name!r}: schedules.all(session) lists them")
        return found


def _info(row: Schedule) -> ScheduleInfo:
    read = {each.name: getattr(row, each.name, None) for each in fields(ScheduleInfo)}
    times = {name: as_utc(value) for name, value in read.items() if isinstance(value, datetime)}
    values, missed = json.loads(row.values_json), Missed(row.missed)
    told: Any = {"values": values, "missed": missed, "paused": row.status == PAUSED}
    return ScheduleInfo(**{**read, **times, **told})


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
