"""Failed and cancelled jobs, counted and listed where an index finds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
) -> list[FailedJob]:
    """List the failed jobs of a queue, those that failed last first.

    A row without an owner_date, which no verb leaves, is not listed.

    Args:
        queue: a mapped class, a JobQueue or a workflow's step.
        limit: the most jobs to list.
        before: list those that come behind this one: the last of the page before.
        until: the first page lists only those that failed at this time or earlier, by the
            database's clock.

    Raises:
        ArgumentError: no index finds them, or the limit is below 1.
    """
    if limit < 1:
        raise ArgumentError(f"limit is the most jobs to list, at least 1: {limit!r}")
    spec = job_queue_of(queue).plan.spec
    with _reading_failed(session, spec) as writer:
        rows = writer.rows(_page(spec, writer, limit, before, until)).all()
    width = len(spec.mapping.keys)
    return [_job(tuple(row[:width]), *row[width:]) for row in rows]


def count_failed(session: AnySession, queue: Any, *, until: datetime) -> Count:
    """Count the jobs of a queue that failed at a time or earlier, by the database's clock.

    Raises:
        ArgumentError: no index finds them.
    """
    spec = job_queue_of(queue).plan.spec
    mapping = spec.mapping
    with _reading_failed(session, spec) as writer:
        found = of_status(spec, writer, FAILED, mapping.key_attributes)
        return count_rows(writer, found.where(mapping.attribute("owner_date") <= until))


@contextmanager
def _reading_failed(session: AnySession, spec: ClaimSpec) -> Iterator[Writer]:
    """Read failed jobs by their index; refuse to read them without it."""
    mapping = mapping_of(spec.mapping.mapper)  # refuses a class without JobMixin
    with writing(session, mapping, reads=True) as writer:
        if not is_indexed(writer, mapping):
            raise ArgumentError(no_index(mapping))
        with writer.database.without_table_scans(writer.connection):
            yield writer


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


def no_index(mapping: QueueMapping) -> str:
    """Say that no index finds the failed jobs of a class, and how to get one."""
    return (
        f"no index finds the failed jobs of {mapping}, and without it all done rows are read. Add "
        '"failed_index": True to its __queue_args__, and the index to the table by a migration'
    )
