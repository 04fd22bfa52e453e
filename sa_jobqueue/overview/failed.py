"""Failed and cancelled jobs, counted and listed by their index.

Without the index they are looked for among the last rows by primary key, since all done rows would
be read: :func:`why_incomplete` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, null, or_, select, tuple_

from ..dialects.clock import as_utc
from ..errors import ArgumentError
from ..model.indexes import failed_index, is_unsuccessful
from ..model.keys import row_like
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import FAILED, JobStatus
from ..queue_position.finish_rate import finds_newest
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from .count import Count, count_rows
from .queue import job_queue_of
from .schema import indexes_of

#: Without an index, jobs are looked for among so many rows, those with the largest keys.
LOOK = 10_000


@dataclass(frozen=True)
class FailedJob:
    """A job that has failed.

    Attributes:
        key: the values of its primary key.
        attempts: how often it was tried; None: the class has no RetryMixin.
        owner_date: when it failed, by the database's clock.
        last_error: None: none is known, or the class has no RetryMixin.
    """

    key: tuple[Any, ...]
    attempts: int | None
    owner_date: datetime
    last_error: str | None


def failed_jobs(
    session: AnySession,
    queue: Any,
    *,
    limit: int,
    before: FailedJob | None = None,
    until: datetime | None = None,
    complete: bool = False,
) -> list[FailedJob]:
    """List the failed jobs of a queue, those that failed last first.

    A row without an owner_date, which no verb leaves, is not listed. Without an index that finds
    failed jobs, they are looked for among the 10,000 rows with the largest keys.

    Args:
        queue: a mapped class, a JobQueue or a workflow's step.
        limit: the most jobs to list.
        before: list those that come behind this one: the last of the page before.
        until: the first page lists only those that failed at this time or earlier, by the
            database's clock.
        complete: refuse to leave jobs out: no index finds them, and the table has more rows.

    Raises:
        ArgumentError: the limit is below 1, or the list would not be complete.
    """
    if limit < 1:
        raise ArgumentError(f"limit is the most jobs to list, at least 1: {limit!r}")
    spec = job_queue_of(queue).plan.spec
    with _reading(session, spec) as writer, bounded_look(writer, spec.mapping, FAILED) as look:
        if look and complete:
            raise ArgumentError(_no_index(spec.mapping, FAILED))
        page = _page(spec, writer, limit, before, until).where(*look)
        rows = writer.rows(page).all()
    width = len(spec.mapping.keys)
    return [_job(tuple(row[:width]), *row[width:]) for row in rows]


def count_failed(session: AnySession, queue: Any, *, until: datetime) -> Count:
    """Count the jobs of a queue that failed at a time or earlier, by the database's clock.

    Raises:
        ArgumentError: no index finds them, and the table has more than 10,000 rows.
    """
    spec = job_queue_of(queue).plan.spec
    mapping = spec.mapping
    with _reading(session, spec) as writer, bounded_look(writer, mapping, FAILED) as look:
        if look:
            raise ArgumentError(_no_index(mapping, FAILED))
        found = of_status(spec, writer, FAILED, mapping.key_attributes)
        return count_rows(writer, found.where(mapping.attribute("owner_date") <= until))


def why_incomplete(session: AnySession, queue: Any, status: JobStatus = FAILED) -> str | None:
    """Say why a list of failed or cancelled jobs may lack some; None: it has all."""
    spec = job_queue_of(queue).plan.spec
    with _reading(session, spec) as writer, bounded_look(writer, spec.mapping, status) as look:
        return _no_index(spec.mapping, status) if look else None


def _reading(session: AnySession, spec: ClaimSpec) -> AbstractContextManager[Writer]:
    mapping = mapping_of(spec.mapping.mapper)  # refuses a class without JobMixin
    return writing(session, mapping, reads=True)


@contextmanager
def bounded_look(
    writer: Writer, mapping: QueueMapping, status: JobStatus
) -> Iterator[list[ColumnElement[bool]]]:
    """Read jobs of a status by an index.

    Yields:
        The criteria of the rows to look at; none where an index finds the jobs, or where the table
        is so small that all rows are looked at.
    """
    indexed, database = is_indexed(writer, mapping, status), writer.database
    with database.without_table_scans(writer.connection, sorting=not indexed):
        yield [] if indexed else _last_rows(writer, mapping)


def _last_rows(writer: Writer, mapping: QueueMapping) -> list[ColumnElement[bool]]:
    """Return the criteria of the rows with the largest keys; none if the table has no more."""
    keys = mapping.key_attributes
    from_end: Any = select(*keys).order_by(*(key.desc() for key in keys))
    first = writer.rows(from_end.offset(LOOK).limit(1)).first()
    return [] if first is None else beyond(keys, tuple(first))


def beyond(columns: Sequence[Any], values: Sequence[Any]) -> list[ColumnElement[bool]]:
    """Return criteria of larger rows, of which the first bounds the index on every database."""
    if len(columns) == 1:
        return [columns[0] > values[0]]
    return [columns[0] >= values[0], tuple_(*columns) > row_like(columns, values)]


def count_unsuccessful(spec: ClaimSpec, writer: Writer, status: JobStatus) -> Count | None:
    """Count the failed or the cancelled jobs of a queue; None: no index finds them."""
    mapping = spec.mapping
    if not is_indexed(writer, mapping, status):
        return None
    return count_rows(writer, of_status(spec, writer, status, mapping.key_attributes))


def is_indexed(writer: Writer, mapping: QueueMapping, status: JobStatus = FAILED) -> bool:
    """Tell whether the table has an index that finds the newest jobs of a status.

    It is the index that the model declares, or, as on MySQL and MariaDB, a reap index that
    holds all rows.
    """
    declared, word = failed_index(mapping), mapping.word(status)
    return any(
        (declared is not None and there.name == declared.name and not there.unusable)
        or finds_newest(mapping, there, word)
        for there in indexes_of(writer, mapping)
    )


def _page(
    spec: ClaimSpec,
    writer: Writer,
    limit: int,
    before: FailedJob | None,
    until: datetime | None,
) -> Any:
    mapping = spec.mapping
    date, keys = mapping.attribute("owner_date"), mapping.key_attributes
    more = (mapping.attribute(r) if mapping.has(r) else null() for r in ("attempts", "last_error"))
    found = of_status(spec, writer, FAILED, [*keys, date, *more])
    if before is not None:
        found = found.where(*_behind(mapping, before))
    else:
        found = found.where(date.is_not(None) if until is None else date <= until)
    return found.order_by(date.desc(), *(key.desc() for key in keys)).limit(limit)


def of_status(spec: ClaimSpec, writer: Writer, status: JobStatus, columns: Sequence[Any]) -> Any:
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


def _behind(mapping: QueueMapping, job: FailedJob) -> list[ColumnElement[bool]]:
    """Return criteria of which the first bounds the index on every database."""
    date, keys = mapping.attribute("owner_date"), mapping.key_attributes
    smaller: Any = (
        keys[0] < job.key[0] if len(keys) == 1 else tuple_(*keys) < row_like(keys, job.key)
    )
    return [date <= job.owner_date, or_(date < job.owner_date, smaller)]


def _job(
    key: tuple[Any, ...], date: datetime, attempts: int | None, error: str | None
) -> FailedJob:
    return FailedJob(key, attempts, as_utc(date), error)


def _no_index(mapping: QueueMapping, status: JobStatus) -> str:
    """Say that no index finds the jobs of a status, and how to get one."""
    return (
        f"no index finds the {status} jobs of {mapping}, so only the {LOOK:,} rows with the "
        'largest keys are looked at. To find all, add "failed_index": True to its __queue_args__, '
        "and the index to the table by a migration"
    )
