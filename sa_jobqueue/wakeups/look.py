"""The look: a plain read that tells whether a job is due, or when the next one will be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, func, literal_column, select

from ..dialects import Database
from ..dialects.clock import as_utc, utc_now
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows

#: A look visits at most so many rounds and priorities of a queue.
LEVELS = 20


class Look:
    """Reads of several queues.

    Args:
        options: the execution options of the application's engine.
    """

    def __init__(
        self, specs: Sequence[ClaimSpec], database: Database, options: Mapping[str, Any]
    ) -> None:
        self._reads = [_Read(spec, database) for spec in specs]
        self._options = {name: options[name] for name in ("schema_translate_map",) & options.keys()}

    @property
    def knows_times(self) -> bool:
        """Whether jobs become due with time."""
        return any(read.has_time for read in self._reads)

    def due_in(self, connection: Connection) -> float | None:
        """Return the seconds until a job is due, 0 at most if one is; None: none is waiting."""
        soonest: float | None = None
        for read in self._reads:
            for seconds in read.times(connection, self._options):
                soonest = seconds if soonest is None else min(soonest, seconds)
                if soonest <= 0:
                    return soonest
        return soonest


class _Read:
    """The read of one queue: of the first job of each of its levels."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self._spec, self._database, self._mapping = spec, database, spec.mapping
        self._ready = ready = ReadyRows(spec, database)
        self.has_time = self._mapping.has("run_at")
        # In another order the first job is not the one that is due first.
        self._reads_time = self.has_time and spec.own_order
        if self._reads_time:
            columns = [self._mapping.attribute("run_at"), utc_now()]
        else:
            columns = [literal_column("1")]
        read = ready.select(*columns, plain=True, due=not self._reads_time)
        self._statement = ready.by_claim_index(read) if spec.served else read
        self._next = self._next_due() if self.has_time and not self._reads_time else None

    def times(self, connection: Connection, options: Mapping[str, Any]) -> Iterator[float]:
        """Yield the seconds until a job of each level is due."""
        writer = Writer(None, connection, self._database, True, self._mapping.mapper, options)
        for level in islice(self._levels(writer), LEVELS):
            found: Any = writer.core(self._statement, {"sa_jobqueue_limit": 1, **level}).first()
            if found is not None:
                yield _seconds(*found) if self._reads_time else 0.0
            elif self._next is not None:
                waiting: Any = writer.core(self._next).one()
                if waiting.run_at is not None:
                    yield _seconds(*waiting)

    def _next_due(self) -> Any:
        """Select the time of the job that is due first, whatever the claim order."""
        run_at = self._mapping.attribute("run_at")
        first = select(func.min(run_at).label("run_at"), utc_now())
        return first.where(self._ready.has_status, *self._spec.where)

    def _levels(self, writer: Writer) -> Iterator[dict[str, Any]]:
        return self._ready.levels.each(writer) if self._spec.levels else iter([{}])


def _seconds(run_at: datetime, now: datetime) -> float:
    return (as_utc(run_at) - as_utc(now)).total_seconds()
