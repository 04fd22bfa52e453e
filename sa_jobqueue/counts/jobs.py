"""list_jobs(): jobs of a queue by their state, a page at a time, read by indexes alone.

Without their index, failed and cancelled jobs are looked for among the last rows by primary key,
since all done rows would be read: :func:`why_incomplete` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Row, func, null, or_, select

from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.indexes import is_unsuccessful, job_indexes
from ..model.keys import beyond
from ..model.mapping import QueueMapping
from ..model.status import CANCELLED, FAILED, JobStatus
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from .count import LEVELS, MOST, Count, count_of, counting, finds_newest, spec_of

#: Without an index, failed jobs are looked for among so many rows, those with the largest keys.
LOOK = 10_000

#: What a ListedJob has beside its key.
ROLES = ("owner", "owner_date", "run_at", "round", "priority", "attempts", "last_error")


class Listed(Enum):
    """Which jobs to list, and in which order."""

    DUE = "due"  #: in claim order
    LATER = "later"  #: unclaimed and not due yet, in claim order
    CLAIMED = "claimed"  #: the oldest claim first
    FAILED = "failed"  #: the newest first
    CANCELLED = "cancelled"  #: the newest first


#: The lists that an index of their own finds.
UNSUCCESSFUL = {Listed.FAILED: FAILED, Listed.CANCELLED: CANCELLED}


@dataclass(frozen=True)
class ListedJob:
    """A job in a list; what its class has no column for is None.

    Attributes:
        key: the values of its primary key.
        owner_date: when it was claimed, failed or cancelled, by the database's clock.
        text: which job it is, in words: of a task its call, else its ``web_columns``.
    """

    key: tuple[Any, ...]
    owner: str | None = None
    owner_date: datetime | None = None
    run_at: datetime | None = None
    round: int | None = None
    priority: int | None = None
    attempts: int | None = None
    last_error: str | None = None
    text: str | None = None


def list_jobs(
    session: AnySession,
    queue: Any,
    which: Listed,
    *,
    limit: int,
    after: ListedJob | None = None,
    until: datetime | None = None,
    owner: str | None = None,
    error: str | None = None,
    complete: bool = False,
) -> list[ListedJob]:
    """List jobs of a queue.

    Failed and cancelled jobs without an index are looked for among the 10,000 rows with the largest
    keys. A row without an owner_date, which no verb leaves, is not listed. Only the first jobs are
    listed if there are more than 20 levels of priority. In an order of your own, due and later jobs
    have no second page.

    Args:
        queue: a mapped class, a JobQueue or a workflow's step.
        limit: the most jobs to list.
        after: list those that come behind this one, as it was listed: the last of a page.
        until: list those of which the first was claimed, failed or cancelled at this time or
            earlier, by the database's clock.
        owner: list claimed jobs that this owner has.
        error: list failed jobs whose error has this first line, as :func:`failures_by_kind` tells.
        complete: refuse to leave failed or cancelled jobs out.

    Raises:
        ArgumentError: the limit is below 1, or the list would not be complete.
    """
    if limit < 1:
        raise ArgumentError(f"limit is the most jobs to list, at least 1: {limit!r}")
    spec, in_order = spec_of(queue), which in (Listed.DUE, Listed.LATER)
    sorting = in_order and not spec.in_index_order
    status = UNSUCCESSFUL.get(which)
    with _looking(session, spec, status, complete=complete, sorting=sorting) as (writer, look):
        if in_order:
            rows = _in_claim_order(spec, writer, limit, after, due=which is Listed.DUE)
        else:
            found = _by_date(spec, writer, which, _columns(spec.mapping), after, until)
            look = [*look, *_filters(spec.mapping, owner, error)]
            rows = list(writer.rows(found.where(*look).limit(limit)))
        return [_job(spec.mapping, row) for row in rows]


def sorted_by(queue: Any, which: Listed) -> list[str]:
    """Name what a list is sorted by before the key: attributes of a ListedJob."""
    in_order = which in (Listed.DUE, Listed.LATER)
    return spec_of(queue).mapping.order_roles if in_order else ["owner_date"]


def count_failed(
    session: AnySession, queue: Any, *, until: datetime, error: str | None = None
) -> Count:
    """Count the jobs of a queue that failed at a time or earlier, by the database's clock.

    Args:
        error: count those whose error has this first line.

    Raises:
        ArgumentError: no index finds them, and the table has more than 10,000 rows.
    """
    return count_listed(session, queue, Listed.FAILED, until=until, error=error)


def count_listed(
    session: AnySession,
    queue: Any,
    which: Listed,
    *,
    until: datetime | None = None,
    owner: str | None = None,
    error: str | None = None,
) -> Count:
    """Count the jobs that :func:`list_jobs` lists, page after page.

    Args:
        until, owner, error: as for list_jobs.

    Raises:
        ArgumentError: no index finds them, and the table has more than 10,000 rows.
    """
    spec, in_order = spec_of(queue), which in (Listed.DUE, Listed.LATER)
    mapping, status = spec.mapping, UNSUCCESSFUL.get(which)
    sorting = in_order and not spec.in_index_order
    with _looking(session, spec, status, complete=True, sorting=sorting) as (writer, _):
        if in_order:
            return _count_in_order(spec, writer, due=which is Listed.DUE)
        keys = _by_date(spec, writer, which, mapping.key_attributes, None, until)
        found = keys.where(*_filters(mapping, owner, error))
        return count_of(writer.rows(counting(found)).scalar_one())


#: So many of the last failures are sorted by kind, and so much of an error tells its kind.
SORTED, TOLD = 1_000, 120


@dataclass(frozen=True)
class Failures:
    """Failed jobs whose errors have the same first line.

    Attributes:
        error: the line.
        number: how many jobs have it, of those that were looked at.
        first: when the first of these failed.
        last: when the last of these failed.
    """

    error: str
    number: int
    first: datetime
    last: datetime


def failures_by_kind(session: AnySession, queue: Any) -> list[Failures]:
    """Sort the last 1,000 failures by the first line of their errors, the most frequent first.

    Returns:
        Nothing if no index finds them, or the class has no ``last_error``.
    """
    spec = spec_of(queue)
    mapping = spec.mapping
    with _looking(session, spec, FAILED) as (writer, _):
        if not (mapping.has("last_error") and _is_indexed(writer, mapping, FAILED)):
            return []
        date = mapping.attribute("owner_date")
        begin = func.substr(mapping.attribute("last_error"), 1, TOLD)
        failed = _of_status(spec, writer, FAILED, [begin.label("error"), date.label("date")])
        last = failed.where(date.is_not(None)).order_by(date.desc()).limit(SORTED).subquery()
        error, times = last.c.error, (func.min(last.c.date), func.max(last.c.date))
        found: dict[str, Failures] = {}
        by_error: Any = select(error, func.count(), *times).where(error.is_not(None))
        rows: Any = writer.rows(by_error.group_by(error))
        for told, number, first, final in rows:
            line, first, final = told.partition("\n")[0], as_utc(first), as_utc(final)
            if known := found.get(line):
                number += known.number
                first, final = min(first, known.first), max(final, known.last)
            found[line] = Failures(line, number, first, final)
    return sorted(found.values(), key=lambda kind: (-kind.number, kind.error))


def _filters(
    mapping: QueueMapping, owner: str | None, error: str | None
) -> list[ColumnElement[bool]]:
    """Return the criteria of an owner's jobs, or of an error's first line, which may be cut."""
    found: list[ColumnElement[bool]] = []
    if owner is not None:
        found.append(mapping.attribute("owner") == owner)
    if error is not None:
        column = mapping.attribute("last_error")
        begins = column.startswith(error if len(error) >= TOLD else f"{error}\n", autoescape=True)
        found.append(begins if len(error) >= TOLD else or_(column == error, begins))
    return found


def why_incomplete(session: AnySession, queue: Any, which: Listed = Listed.FAILED) -> str | None:
    """Say why a list of jobs may lack some; None: it has all."""
    spec, status = spec_of(queue), UNSUCCESSFUL.get(which)
    with _looking(session, spec, status) as (_, look):
        return _no_index(spec.mapping, status) if status and look else None


def counting_unsuccessful(spec: ClaimSpec, writer: Writer, status: JobStatus) -> Any:
    """Count the failed or the cancelled jobs of a queue; None: no index finds them."""
    if not _is_indexed(writer, spec.mapping, status):
        return None
    return counting(_of_status(spec, writer, status, spec.mapping.key_attributes))


# -- failed and cancelled jobs ------------------------------------------------


@contextmanager
def _looking(
    session: AnySession,
    spec: ClaimSpec,
    status: JobStatus | None,
    *,
    complete: bool = False,
    sorting: bool = False,
) -> Iterator[tuple[Writer, list[ColumnElement[bool]]]]:
    """Read jobs of a status by an index.

    Yields:
        The criteria of the rows to look at; none where an index finds the jobs, or where the table
        is so small that all rows are looked at.
    """
    with writing(session, spec.mapping, reads=True) as writer:
        indexed = status is None or _is_indexed(writer, spec.mapping, status)
        sorting = sorting or not indexed
        with writer.database.without_table_scans(writer.connection, sorting=sorting):
            look = [] if indexed else _last_rows(writer, spec.mapping)
            if look and status and complete:
                raise ArgumentError(_no_index(spec.mapping, status))
            yield writer, look


def _last_rows(writer: Writer, mapping: QueueMapping) -> list[ColumnElement[bool]]:
    """Return the criteria of the rows with the largest keys; none if the table has no more."""
    keys = mapping.key_attributes
    from_end: Any = select(*keys).order_by(*(key.desc() for key in keys))
    first = writer.rows(from_end.offset(LOOK).limit(1)).first()
    return [] if first is None else beyond(keys, tuple(first), writer.database)


def _is_indexed(writer: Writer, mapping: QueueMapping, status: JobStatus) -> bool:
    """Tell whether the model declares an index that finds the newest jobs of a status."""
    declared = "failed" in job_indexes(mapping.table)
    return declared or finds_newest(writer, mapping, mapping.word(status))


def _of_status(spec: ClaimSpec, writer: Writer, status: JobStatus, columns: Sequence[Any]) -> Any:
    """Select the failed or the cancelled jobs of a queue, by their index."""
    mapping = spec.mapping
    found: Any = select(*columns).where(
        is_unsuccessful(mapping, mapping.attribute("status")),
        mapping.has_status(mapping.word(status)),
        *spec.where,
    )
    index = job_indexes(mapping.table).get("failed")
    hint = None if index is None else writer.database.index_hint(index)
    return found if hint is None else found.prefix_with(hint)


def _no_index(mapping: QueueMapping, status: JobStatus) -> str:
    """Say that no index finds the jobs of a status, and how to get one."""
    return (
        f"no index finds the {status} jobs of {mapping}, so only the {LOOK:,} rows with the "
        'largest keys are looked at. To find all, add "failed_index": True to its __queue_args__, '
        "and the index to the table by a migration"
    )


# -- the rows of a page -------------------------------------------------------


def _columns(mapping: QueueMapping) -> list[Any]:
    has = mapping.has
    roles = (mapping.attribute(role) if has(role) else null().label(role) for role in ROLES)
    text = (getattr(mapping.entity, key) for key in mapping.shown_keys)
    return [*mapping.key_attributes, *roles, *text]


def _job(mapping: QueueMapping, row: Row[Any]) -> ListedJob:
    width = len(mapping.keys)
    behind = width + len(ROLES)
    values: dict[str, Any] = dict(zip(ROLES, row[width:behind], strict=True))
    values["text"] = mapping.shown_text(dict(zip(mapping.shown_keys, row[behind:], strict=True)))
    for name in ("owner_date", "run_at"):
        values[name] = None if values[name] is None else as_utc(values[name])
    return ListedJob(tuple(row[:width]), **values)


def _by_date(
    spec: ClaimSpec,
    writer: Writer,
    which: Listed,
    columns: Sequence[Any],
    after: ListedJob | None,
    until: datetime | None,
) -> Any:
    """Select claimed jobs, the oldest first, or failed or cancelled jobs, the newest first."""
    mapping = spec.mapping
    order: list[Any] = [mapping.attribute("owner_date"), *mapping.key_attributes]
    ascending = which is Listed.CLAIMED
    if ascending:
        found: Any = select(*columns).where(mapping.has_status(*spec.in_progress), *spec.where)
    else:
        found = _of_status(spec, writer, UNSUCCESSFUL[which], columns)
    behind = [order[0].is_not(None) if until is None else order[0] <= until]
    if after is not None:
        behind += beyond(
            order, (after.owner_date, *after.key), writer.database, ascending=ascending
        )
    sorted_ = order if ascending else [column.desc() for column in order]
    return found.where(*behind).order_by(*sorted_)


def _in_claim_order(
    spec: ClaimSpec, writer: Writer, limit: int, after: ListedJob | None, *, due: bool
) -> list[Row[Any]]:
    """Read level after level, as a claim does."""
    mapping, ready = spec.mapping, ReadyRows(spec, writer.database)
    found = _ready(spec, ready, _columns(mapping), due=due)
    if found is None or (after is not None and not spec.own_order):
        return []
    within = [role for role in mapping.order_roles if role not in spec.levels]
    order = [*map(mapping.attribute, within), *mapping.key_attributes]
    rows: list[Row[Any]] = []
    for level in islice(ready.each_level(writer), LEVELS):
        page = found
        if after is not None:
            begin = tuple(getattr(after, role) for role in spec.levels)
            if tuple(level.values()) < begin:
                continue
            if tuple(level.values()) == begin:
                values = (*(getattr(after, role) for role in within), *after.key)
                page = found.where(*beyond(order, values, writer.database))
        rows += writer.rows(page, level | {"sa_jobqueue_limit": limit - len(rows)})
        if len(rows) >= limit:
            break
    return rows


def _count_in_order(spec: ClaimSpec, writer: Writer, *, due: bool) -> Count:
    """Count level after level, up to a limit."""
    ready, number = ReadyRows(spec, writer.database), 0
    found = _ready(spec, ready, spec.mapping.key_attributes, due=due)
    if found is None:
        return Count(0)
    counted: Any = select(func.count()).select_from(found.subquery())
    levels = list(islice(ready.each_level(writer), LEVELS + 1))
    for level in levels[:LEVELS]:
        rows = writer.rows(counted, level | {"sa_jobqueue_limit": MOST + 1 - number})
        number += rows.scalar_one()
    return Count(min(number, MOST), number > MOST or len(levels) > LEVELS)


def _ready(spec: ClaimSpec, ready: ReadyRows, columns: Sequence[Any], *, due: bool) -> Any:
    """Select the due or the later jobs of a level, in claim order; None: none can be later."""
    if due:
        return ready.by_claim_index(ready.select(*columns, plain=True))
    if not spec.mapping.has("run_at"):
        return None
    found = ready.by_claim_index(ready.select(*columns, plain=True, due=False))
    return found.where(spec.mapping.attribute("run_at") > utc_now())
