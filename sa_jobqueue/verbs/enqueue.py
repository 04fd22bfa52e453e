"""enqueue(): insert many unclaimed jobs, in every style of mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Insert, insert, select
from sqlalchemy.engine import Result

from ..dialects import Database
from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..events.event import Event, EventJob
from ..events.notes import note, note_claimable
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import UNCLAIMED
from ..model.transitions import enqueued
from ..sessions.built_once import built_once
from ..sessions.writer import AnySession, Writer, has_execute_hooks, session_of, writing

#: Rows for each statement: memory stays bounded for a generator of any length.
CHUNK = 1_000

#: So many rows of one call are many: the database's planner is told of them.
MANY = 5_000


def enqueue(
    session: AnySession,
    entity: type[Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    priority: int | None = None,
    run_at: datetime | None = None,
    skip_duplicates: bool = False,
) -> int | None:
    """Insert unclaimed jobs in the caller's transaction; return how many.

    ``session.add(Email(..))`` makes a job too. But the constructors of dataclasses and of
    SQLModel do not know the mixins' columns; this function sets priority and time for them.

    Args:
        session: the caller's; nothing is committed.
        entity: a mapped class with JobMixin.
        rows: a mapping of attribute names to values for each row; a generator is
            inserted in chunks.
        priority: for the rows that have none of their own.
        run_at: an aware time; no claim takes the jobs before it.
        skip_duplicates: leave out rows that a unique constraint or index of the
            table refuses; all other errors are raised. See docs/unique.md.

    Returns:
        How many rows were inserted; None with `skip_duplicates` on MySQL and
        MariaDB, which do not report it.

    Raises:
        ArgumentError: `priority` or `run_at` without the mixin, a naive time, a name of
            no column, or a row that is no mapping. Also `skip_duplicates` for a class
            whose rows are spread over several tables.
    """
    mapping = mapping_of(entity)
    ready = mapping.word(UNCLAIMED)
    return insert_jobs(session, mapping, ready, rows, priority, run_at, skip_duplicates)


def insert_jobs(
    session: AnySession,
    mapping: QueueMapping,
    ready: str,
    rows: Iterable[Mapping[str, Any]],
    priority: int | None,
    run_at: datetime | None,
    skip_duplicates: bool,
) -> int | None:
    """Insert jobs that have the status `ready`; see :func:`enqueue`."""
    if skip_duplicates and not mapping.one_table:
        raise ArgumentError(
            f"a row of {mapping} is spread over {mapping.tables} tables, and one of them may "
            "refuse its part: find duplicates yourself, and call enqueue() without skip_duplicates"
        )
    common = _common(mapping, priority=priority, run_at=run_at)
    if ready != mapping.word(UNCLAIMED):  # which the INSERT writes as a literal
        common[mapping.attributes["status"]] = ready
    inserted: list[int | None] = []
    # Where a session has hooks, the INSERT goes through it: they see that, and need no more.
    seen = has_execute_hooks(session_of(session))
    with writing(session, mapping, reads=seen) as writer:
        ordered = set(mapping.order_attributes)  # rows that give these may stand before others
        if mapping.has("run_at"):
            # The time is read once and bound: so the batch is claimed first in, first
            # out, and drivers join rows without SQL functions into one statement.
            now = as_utc(writer.core(select(utc_now())).scalar_one())
            if common.setdefault(mapping.attributes["run_at"], now) is now:
                ordered.discard(mapping.attributes["run_at"])
        for alike in _alike(_joined(common, row) for row in rows):
            _check(mapping, alike)
            inserted.append(_insert(writer, mapping, alike, skip=skip_duplicates))
            mapping.head.changes += not ordered.isdisjoint(alike[0])
            if mapping.listeners:
                of_rows = [] if skip_duplicates else alike
                note(writer, mapping, _event(mapping, of_rows, inserted[-1]))
            if mapping.wakes:
                note_claimable(writer, mapping)
        known = [count for count in inserted if count is not None]
        # Under AUTOCOMMIT the rows are committed: an error after that would look like none were.
        if sum(known) >= MANY and not writer.in_autocommit:
            writer.database.told_of_rows(writer.connection, mapping.table, sum(known))
    return sum(known) if len(known) == len(inserted) else None


def _event(mapping: QueueMapping, rows: Sequence[Mapping[str, Any]], count: int | None) -> Event:
    """Make the event of an INSERT; the keys are known where all rows give them."""
    names = [attribute.key for attribute in mapping.key_attributes]
    known = all(row.get(name) is not None for row in rows for name in names)
    jobs = tuple(EventJob(tuple(row[name] for name in names)) for row in rows) if known else ()
    return Event("after_enqueue", "enqueue", mapping.entity, jobs, count)


def _common(mapping: QueueMapping, **given: Any) -> dict[str, Any]:
    mixins = {"priority": "PriorityMixin", "run_at": "ScheduleMixin"}
    for role, value in given.items():
        if value is not None and not mapping.has(role):
            raise ArgumentError(f"{mapping} has no {role}: add {mixins[role]}")
    return {mapping.attributes[role]: value for role, value in given.items() if value is not None}


def _joined(common: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {**common, **row}
    except TypeError as error:
        raise ArgumentError(
            f"a row must map attribute names to values, not {row!r}; for entities use "
            "session.add_all()"
        ) from error


def _alike(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Divide rows, in their order, into chunks whose rows name the same columns."""
    for _, of_same_names in groupby(rows, key=dict.keys):
        while chunk := list(islice(of_same_names, CHUNK)):
            yield chunk


def _check(mapping: QueueMapping, rows: list[dict[str, Any]]) -> None:
    """Refuse names of no column, and naive times; convert the other times to UTC."""
    names = rows[0].keys()
    unknown = names - mapping.mapper.columns.keys()
    if unknown:
        raise ArgumentError(f"{mapping} has no column {', '.join(sorted(unknown))}")
    for key in names & set(mapping.time_keys):
        for row in rows:
            value = row[key]
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ArgumentError(f"{key}={value!r} has no time zone; use an aware datetime")
                row[key] = as_utc(value)


def _insert(
    writer: Writer, mapping: QueueMapping, rows: list[dict[str, Any]], *, skip: bool
) -> int | None:
    """Insert rows that name the same columns, without the ORM where it would add nothing.

    Returns:
        How many rows were inserted; None where the database does not tell. The row count of MySQL
        and MariaDB would be wrong: SQLAlchemy has them count the rows found (CLIENT.FOUND_ROWS),
        and a duplicate is found.
    """
    new, mapper = writer.database if skip else None, mapping.mapper
    written_by_mapper = mapper.polymorphic_on is not None or mapper.version_id_col is not None
    if writer.hooked or not mapping.plain or written_by_mapper:
        result: Result[Any] = writer.orm(
            _insert_into(mapping.entity, new, *mapping.key_attributes), rows
        )
    else:
        columns: dict[str, Any] = {name: mapper.columns[name].key for name in rows[0]}
        if any(name != key for name, key in columns.items()):
            rows = [{columns[name]: value for name, value in row.items()} for row in rows]
        statement = _insert_statement(mapping, writer, frozenset(columns.values()), skip)
        result = writer.core(statement, rows)
    if new is None:
        return len(rows)
    return len(result.all()) if new.returns_new else None


def _insert_into(target: Any, new: Database | None, *keys: Any) -> Any:
    """Return an INSERT; with a database `new`, of the rows that are new, and returning them."""
    if new is None:
        return insert(target)
    return new.insert_new(target).returning(*keys) if new.returns_new else new.insert_new(target)


@built_once
def _insert_statement(
    mapping: QueueMapping, writer: Writer, given: frozenset[str], skip: bool
) -> Insert:
    """Return an INSERT, with the defaults of the mixins' columns as literals where allowed.

    On PostgreSQL a parameter for each row's status makes an insert take a third longer.
    """
    new = writer.database if skip else None
    statement: Insert = _insert_into(mapping.table, new, *mapping.keys)
    if not writer.database.joins_literals:
        return statement
    defaults = {
        column: value for column, value in enqueued(mapping).items() if column.key not in given
    }
    return statement.values(defaults)
