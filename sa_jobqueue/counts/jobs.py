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

from sqlalchemy import ColumnElement, Row, null, select

from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.indexes import failed_index, is_unsuccessful
from ..model.keys import beyond
from ..model.mapping import QueueMapping
from ..model.status import CANCELLED, FAILED, JobStatus
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from .count import LEVELS, Count, Counted, count_rows, has_newest, indexes_of

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
        text: which job it is, in words: of a task, its call.
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
        complete: refuse to leave failed or cancelled jobs out.

    Raises:
        ArgumentError: the limit is below 1, or the list would not be complete.
    """
    if limit < 1:
        raise ArgumentError(f"limit is the most jobs to list, at least 1: {limit!r}")
    spec, in_order = Counted.of(queue).spec, which in (Listed.DUE, Listed.LATER)
    sorting = in_order and not spec.in_index_order
    status = UNSUCCESSFUL.get(which)
    with _looking(session, spec, status, complete=complete, sorting=sorting) as (writer, look):
        if in_order:
            rows = _in_claim_order(spec, writer, limit, after, due=which is Listed.DUE)
        else:
            found = _by_date(spec, writer, which, after, until)
            rows = list(writer.rows(found.where(*look).limit(limit)))
        return [_job(spec.mapping, row) for row in rows]


def sorted_by(queue: Any, which: Listed) -> list[str]:
    """Name what a list is sorted by before the key: attributes of a ListedJob."""
    in_order = which in (Listed.DUE, Listed.LATER)
    return Counted.of(queue).spec.mapping.order_roles if in_order else ["owner_date"]


def count_failed(session: AnySession, queue: Any, *, until: datetime) -> Count:
    """Count the jobs of a queue that failed at a time or earlier, by the database's clock.

    Raises:
        ArgumentError: no index finds them, and the table has more than 10,000 rows.
    """
    spec = Counted.of(queue).spec
    with _looking(session, spec, FAILED, complete=True) as (writer, _):
        found = _of_status(spec, writer, FAILED, spec.mapping.key_attributes)
        return count_rows(writer, found.where(spec.mapping.attribute("owner_date") <= until))


def why_incomplete(session: AnySession, queue: Any, which: Listed = Listed.FAILED) -> str | None:
    """Say why a list of jobs may lack some; None: it has all."""
    spec, status = Counted.of(queue).spec, UNSUCCESSFUL.get(which)
    with _looking(session, spec, status) as (_, look):
        return _no_index(spec.mapping, status) if status and look else None


def count_unsuccessful(spec: ClaimSpec, writer: Writer, status: JobStatus) -> Count | None:
    """Count the failed or the cancelled jobs of a queue; None: no index finds them."""
    if not _is_indexed(writer, spec.mapping, status):
        return None
    return count_rows(writer, _of_status(spec, writer, status, spec.mapping.key_attributes))


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
    """Tell whether the table has an index that finds the newest jobs of a status.

    It is the index that the model declares, or, as on MySQL and MariaDB, a reap index that
    holds all rows.
    """
    if has_newest(writer, mapping, mapping.word(status)):
        return True
    declared = failed_index(mapping)
    return declared is not None and any(
        there.name == declared.name and not there.unusable for there in indexes_of(writer, mapping)
    )


def _of_status(spec: ClaimSpec, writer: Writer, status: JobStatus, columns: Sequence[Any]) -> Any:
    """Select the failed or the cancelled jobs of a queue, by their index."""
    mapping = spec.mapping
    found: Any = select(*columns).where(
        is_unsuccessful(mapping, mapping.attribute("status")),
        mapping.has_status(mapping.word(status)),
        *spec.where,
    )
    index = failed_index(mapping)
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
    text = (getattr(mapping.entity, key) for key in mapping.text_keys)
    return [*mapping.key_attributes, *roles, *text]


def _job(mapping: QueueMapping, row: Row[Any]) -> ListedJob:
    width = len(mapping.keys)
    behind = width + len(ROLES)
    values: dict[str, Any] = dict(zip(ROLES, row[width:behind], strict=True))
    values["text"] = mapping.text_of(dict(zip(mapping.text_keys, row[behind:], strict=True)))
    for name in ("owner_date", "run_at"):
        values[name] = None if values[name] is None else as_utc(values[name])
    return ListedJob(tuple(row[:width]), **values)


def _by_date(
    spec: ClaimSpec, writer: Writer, which: Listed, after: ListedJob | None, until: datetime | None
) -> Any:
    """Select claimed jobs, the oldest first, or failed or cancelled jobs, the newest first."""
    mapping, columns = spec.mapping, _columns(spec.mapping)
    order: list[Any] = [mapping.attribute("owner_date"), *mapping.key_attributes]
    ascending = which is Listed.CLAIMED
    if ascending:
        found: Any = select(*columns).where(mapping.has_status(*spec.in_progress), *spec.where)
    else:
        found = _of_status(spec, writer, UNSUCCESSFUL[which], columns)
    if after is not None:
        behind = beyond(order, (after.owner_date, *after.key), writer.database, ascending=ascending)
    else:
        behind = [order[0].is_not(None) if until is None else order[0] <= until]
    sorted_ = order if ascending else [column.desc() for column in order]
    return found.where(*behind).order_by(*sorted_)


def _in_claim_order(
    spec: ClaimSpec, writer: Writer, limit: int, after: ListedJob | None, *, due: bool
) -> list[Row[Any]]:
    """Read level after level, as a claim does."""
    mapping, ready = spec.mapping, ReadyRows(spec, writer.database)
    if (not due and not mapping.has("run_at")) or (after is not None and not spec.own_order):
        return []
    found = ready.by_claim_index(ready.select(*_columns(mapping), plain=True, due=due))
    if not due:
        found = found.where(mapping.attribute("run_at") > utc_now())
    within = [role for role in mapping.order_roles if role not in spec.levels]
    order = [*map(mapping.attribute, within), *mapping.key_attributes]
    rows: list[Row[Any]] = []
    for level in islice(ready.levels.each(writer), LEVELS):
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
