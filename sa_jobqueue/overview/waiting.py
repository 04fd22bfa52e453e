"""The jobs that wait: how many are due, since when, and when the next will be.

As a claim does, it steps from level to level of the claim index (round and priority), and
reads only the due entries of each: jobs that are due later are not walked over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, func, null, select

from ..dialects import Database
from ..dialects.clock import EPOCH, as_utc, utc_now
from ..model.status import status_again
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.parts.ready_rows import ReadyRows
from .count import MOST, Count

#: So many rounds and priorities of a queue are looked at.
LEVELS = 20

#: An earlier time is the constant of an INSERT in plain SQL, and tells nothing.
KNOWN_SINCE = EPOCH + timedelta(days=2)


@dataclass(frozen=True)
class Waiting:
    """The unclaimed jobs of a queue.

    Attributes:
        due: those that can be claimed now.
        oldest: for how long the oldest of them has been due; None: unknown, or none is due.
        next_due: when the next of the others is due; None: unknown, or there is none.
    """

    due: Count
    oldest: timedelta | None
    next_due: datetime | None


def read_waiting(spec: ClaimSpec, writer: Writer) -> Waiting:
    """Read the unclaimed jobs of a queue."""
    return _reader(spec, writer).read(writer)


@built_once
def _reader(spec: ClaimSpec, writer: Writer) -> _Reader:
    return _Reader(spec, writer.database)


class _Reader:
    """The statement of one queue, and its walk over the levels."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec, self.mapping, self.database = spec, spec.mapping, database
        self.ready = ReadyRows(spec, database)
        # In another order the first job is not the one that is due first.
        self.by_time = self.mapping.has("run_at") and spec.own_order

    def read(self, writer: Writer) -> Waiting:
        """Read level after level."""
        found, more = 0, False
        oldest: list[timedelta] = []
        coming: list[datetime] = []
        for index, level in enumerate(self._levels(writer)):
            if index == LEVELS:
                more = True
                break
            left = {"sa_jobqueue_limit": max(MOST + 1 - found, 0)}
            count, since, next_due, now = tuple(writer.rows(self.statement, level | left).one())
            found += count
            oldest += [] if since is None else [as_utc(now) - as_utc(since)]
            coming += [] if next_due is None else [as_utc(next_due)]
        due = Count.up_to(MOST, found, more=more)
        return Waiting(due, max(oldest, default=None), min(coming, default=None))

    def _levels(self, writer: Writer) -> Any:
        return self.ready.levels.each(writer) if self.spec.levels else iter([{}])

    @cached_property
    def statement(self) -> Any:
        """Count the due jobs of a level, up to a limit; read the first, and the next."""
        counted = self._counted.subquery("sa_jobqueue_due")
        if self.by_time:
            since, coming = self._oldest.scalar_subquery(), self._next.scalar_subquery()
        else:
            since, coming = func.min(counted.c.since), null()
        counting: Any = select(func.count(), since, coming, utc_now())
        return counting.select_from(counted)

    @property
    def _counted(self) -> Any:
        """Select the due jobs, in an order that only the claim index has, or in none.

        In the order of the primary key PostgreSQL might walk over all rows.
        """
        if self.by_time:
            return self._hinted(self.ready.select(*self.mapping.key_attributes, plain=True))
        since = null() if self._since is None else self._since
        columns = [*self.mapping.key_attributes, since.label("since")]
        return self._hinted(self.ready.select(*columns, plain=True).order_by(None))

    @property
    def _since(self) -> Any:
        """The time from which on a job waits; None: the class has no such column."""
        if self.mapping.has("run_at"):
            return self.mapping.attribute("run_at")
        name = self.mapping.args.enqueued_at
        return None if name is None else getattr(self.mapping.entity, name)

    @property
    def _oldest(self) -> Any:
        run_at = self.mapping.attribute("run_at")
        oldest = self.ready.select(run_at, plain=True).where(run_at >= KNOWN_SINCE)
        return self._hinted(oldest.limit(1))

    @property
    def _next(self) -> Any:
        run_at = self.mapping.attribute("run_at")
        coming = self.ready.select(run_at, plain=True, due=False)
        return self._hinted(coming.where(*self._status_again, run_at > utc_now()).limit(1))

    @property
    def _status_again(self) -> list[ColumnElement[bool]]:
        """Name the status in a way that bounds the index; see ReadyRows."""
        if not self.database.forgets_implied:
            return []
        return [status_again(self.mapping.attribute("status"), self.spec.ready)]

    def _hinted(self, statement: Any) -> Any:
        """Bind a SELECT to the claim index, where that has the queue's jobs in their order."""
        in_order = self.spec.in_index_order
        return self.ready.by_claim_index(statement) if in_order else statement
