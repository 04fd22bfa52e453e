"""list_jobs(): jobs of a queue by their state, a page at a time, read by indexes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, func, null, or_, select, tuple_

from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.keys import row_like
from ..model.mapping import mapping_of
from ..model.status import CANCELLED, FAILED, JobStatus, status_again
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from ..strategies.parts.ready_rows import ReadyRows
from .failed import beyond, bounded_look, of_status
from .queue import job_queue_of
from .waiting import LEVELS

#: So many characters of an error are read for a list.
ERROR_LENGTH = 300

#: The values that a list is sorted by, of a job: the next page begins behind them.
Position = tuple[Any, ...]


class Listed(Enum):
    """Which jobs to list, and in which order."""

    DUE = "due"  #: in claim order
    LATER = "later"  #: unclaimed and not due yet, in claim order
    CLAIMED = "claimed"  #: the oldest claim first
    FAILED = "failed"  #: the newest first
    CANCELLED = "cancelled"  #: the newest first


@dataclass(frozen=True)
class ListedJob:
    """A job in a list; what its class has no column for is None.

    Attributes:
        key: the values of its primary key.
        owner_date: when it was claimed, failed or cancelled, by the database's clock.
        last_error: the beginning of it.
        position: give it to list_jobs() as `after`.
    """

    key: tuple[Any, ...]
    owner: str | None
    owner_date: datetime | None
    run_at: datetime | None
    priority: int | None
    attempts: int | None
    last_error: str | None
    position: Position


def list_jobs(
    session: AnySession,
    queue: Any,
    which: Listed,
    *,
    limit: int,
    after: Position | None = None,
) -> list[ListedJob]:
    """List jobs of a queue.

    Failed and cancelled jobs without an index are looked for among the 10,000 rows with the largest
    keys. Only the first jobs are listed if there are more than 20 levels of priority. If the order
    is the user's own, pages of due and later jobs go by the number of jobs before them. A page may
    then repeat or miss a job that came or went after the page before.

    Args:
        queue: a mapped class, a JobQueue or a workflow's step.
        limit: the most jobs to list.
        after: list those that come behind this position: that of the page's last job.

    Raises:
        ArgumentError: the limit is below 1.
    """
    if limit < 1:
        raise ArgumentError(f"limit is the most jobs to list, at least 1: {limit!r}")
    spec = job_queue_of(queue).plan.spec
    with writing(session, mapping_of(spec.mapping.mapper), reads=True) as writer:
        sorting = which in (Listed.DUE, Listed.LATER) and not spec.in_index_order
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            return _READERS[which](_Columns(spec), writer, limit, after)


def position_types(queue: Any, which: Listed) -> list[type[Any]]:
    """Return the types of a position's values, without those of the job's key at its end."""
    spec = job_queue_of(queue).plan.spec
    if which not in (Listed.DUE, Listed.LATER):
        return [datetime]
    if not spec.own_order:
        return [int]
    return [datetime if role == "run_at" else int for role in _roles(spec)]


class _Columns:
    """The columns of a list, and how its rows become jobs."""

    def __init__(self, spec: ClaimSpec) -> None:
        self.spec, self.mapping = spec, spec.mapping
        self.keys: Sequence[Any] = spec.mapping.key_attributes

    @property
    def selected(self) -> list[Any]:
        """What a list selects: the key, then what a ListedJob has."""
        names = ("owner", "owner_date", "run_at", "priority", "attempts")
        return [*self.keys, *map(self._of, names), self._error, self._round]

    def _of(self, role: str) -> Any:
        return self.mapping.attribute(role) if self.mapping.has(role) else null().label(role)

    @property
    def _error(self) -> Any:
        if not self.mapping.has("last_error"):
            return null().label("last_error")
        return func.substr(self.mapping.attribute("last_error"), 1, ERROR_LENGTH)

    @property
    def _round(self) -> Any:
        return self._of("round")

    def job(self, row: Any, position: Callable[[dict[str, Any]], Position]) -> ListedJob:
        """Return the job of a row; `position` gets its values by their roles."""
        width = len(self.keys)
        key, rest = tuple(row[:width]), row[width:]
        names = ("owner", "owner_date", "run_at", "priority", "attempts", "last_error", "round")
        values = dict(zip(names, rest, strict=True))
        for name in ("owner_date", "run_at"):
            values[name] = None if values[name] is None else as_utc(values[name])
        found = position({**values, "key": key})
        del values["round"]
        return ListedJob(key=key, position=found, **values)


# -- by the time of the last change ----------------------------------------


def _unsuccessful(
    status: JobStatus, columns: _Columns, writer: Writer, limit: int, after: Position | None
) -> list[ListedJob]:
    date = columns.mapping.attribute("owner_date")
    found = of_status(columns.spec, writer, status, columns.selected)
    found = found.where(*_behind(columns, after, newest_first=True))
    found = found.order_by(date.desc(), *(key.desc() for key in columns.keys)).limit(limit)
    with bounded_look(writer, columns.mapping, status) as look:
        return [columns.job(row, _by_date) for row in writer.rows(found.where(*look))]


def _claimed(
    columns: _Columns, writer: Writer, limit: int, after: Position | None
) -> list[ListedJob]:
    mapping, spec = columns.mapping, columns.spec
    found: Any = select(*columns.selected).where(
        mapping.has_status(*spec.in_progress),
        *spec.where,
        *_behind(columns, after, newest_first=False),
    )
    found = found.order_by(mapping.attribute("owner_date"), *columns.keys)
    return [columns.job(row, _by_date) for row in writer.rows(found.limit(limit))]


def _by_date(values: dict[str, Any]) -> Position:
    return (values["owner_date"], *values["key"])


def _behind(
    columns: _Columns, after: Position | None, *, newest_first: bool
) -> list[ColumnElement[bool]]:
    """Return criteria of which the first bounds the index on every database."""
    date = columns.mapping.attribute("owner_date")
    if after is None:
        return [date.is_not(None)]
    moment, keys, key = after[0], _row(columns.keys), row_like(columns.keys, after[1:])
    if newest_first:
        return [date <= moment, or_(date < moment, keys < key)]
    return [date >= moment, or_(date > moment, keys > key)]


def _row(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else tuple_(*columns)


# -- in claim order -----------------------------------------------------------


def _due(columns: _Columns, writer: Writer, limit: int, after: Position | None) -> list[ListedJob]:
    ready = ReadyRows(columns.spec, writer.database)
    return _in_claim_order(columns, writer, ready, limit, after, due=True)


def _later(
    columns: _Columns, writer: Writer, limit: int, after: Position | None
) -> list[ListedJob]:
    if not columns.mapping.has("run_at"):
        return []
    ready = ReadyRows(columns.spec, writer.database)
    return _in_claim_order(columns, writer, ready, limit, after, due=False)


def _in_claim_order(
    columns: _Columns,
    writer: Writer,
    ready: ReadyRows,
    limit: int,
    after: Position | None,
    *,
    due: bool,
) -> list[ListedJob]:
    """Read level after level, as a claim does."""
    if not columns.spec.own_order:
        return _in_other_order(columns, writer, ready, limit, after, due=due)
    roles = _roles(columns.spec)

    def position(values: dict[str, Any]) -> Position:
        return (*(values[role] for role in roles), *values["key"])

    jobs: list[ListedJob] = []
    for level, begins in _levels(columns.spec, writer, ready, after):
        statement = _select(columns, writer, ready, due=due).where(*_further(columns, begins))
        limits = {"sa_jobqueue_limit": limit - len(jobs)}
        rows = writer.rows(ready.by_claim_index(statement), level | limits)
        jobs += [columns.job(row, position) for row in rows]
        if len(jobs) >= limit:
            break
    return jobs


def _in_other_order(
    columns: _Columns,
    writer: Writer,
    ready: ReadyRows,
    limit: int,
    after: Position | None,
    *,
    due: bool,
) -> list[ListedJob]:
    """Read behind so many jobs: nobody knows how the values of the user's own order compare."""
    before: int = 0 if after is None else max(after[0], 0)
    statement = ready.by_claim_index(_select(columns, writer, ready, due=due).offset(before))
    rows = writer.rows(statement, {"sa_jobqueue_limit": limit})
    return [
        columns.job(row, partial(_by_number, number)) for number, row in enumerate(rows, before + 1)
    ]


def _by_number(number: int, values: dict[str, Any]) -> Position:
    return (number, *values["key"])


def _select(columns: _Columns, writer: Writer, ready: ReadyRows, *, due: bool) -> Any:
    statement = ready.select(*columns.selected, plain=True, due=due)
    return statement if due else statement.where(*_not_due(columns, writer))


def _levels(
    spec: ClaimSpec, writer: Writer, ready: ReadyRows, after: Position | None
) -> Iterator[tuple[dict[str, Any], Position]]:
    """Yield levels, each with the position within it behind which its jobs come."""
    if not spec.levels:
        yield {}, after or ()
        return
    width = len(spec.levels)
    begin = None if after is None else tuple(after[:width])
    for index, level in enumerate(ready.levels.each(writer)):
        if index == LEVELS:
            return
        here = tuple(level.values())
        if begin is None or here > begin:
            yield level, ()
        elif here == begin and after is not None:
            yield level, after[width:]


def _further(columns: _Columns, begins: Position) -> list[ColumnElement[bool]]:
    if not begins:
        return []
    within = map(columns.mapping.attribute, _roles_within(columns.spec))
    return beyond([*within, *columns.keys], begins)


def _roles(spec: ClaimSpec) -> list[str]:
    """List the roles that order the jobs of a queue, those of its levels first."""
    return [*spec.levels, *_roles_within(spec)]


def _roles_within(spec: ClaimSpec) -> list[str]:
    """List the roles that order the jobs of a level."""
    return [role for role in spec.mapping.order_roles if role not in spec.levels]


def _not_due(columns: _Columns, writer: Writer) -> list[ColumnElement[bool]]:
    run_at = columns.mapping.attribute("run_at")
    if not writer.database.forgets_implied:
        return [run_at > utc_now()]
    again = status_again(columns.mapping.attribute("status"), columns.spec.ready)
    return [again, run_at > utc_now()]  # see ReadyRows._status_again


_READERS: dict[Listed, Callable[..., list[ListedJob]]] = {
    Listed.DUE: _due,
    Listed.LATER: _later,
    Listed.CLAIMED: _claimed,
    Listed.FAILED: partial(_unsuccessful, FAILED),
    Listed.CANCELLED: partial(_unsuccessful, CANCELLED),
}
