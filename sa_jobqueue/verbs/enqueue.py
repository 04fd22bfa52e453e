"""enqueue(): insert many unclaimed jobs, in every style of mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Column, Insert, bindparam, func, insert, select, update
from sqlalchemy.engine import Result
from sqlalchemy.orm import class_mapper

from ..databases import Database
from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..events.event import Event, EventJob
from ..events.notes import note, note_claimable
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import UNCLAIMED
from ..model.transitions import enqueued
from ..sessions.writer import (
    AnySession,
    Writer,
    any_session_of,
    built_once,
    has_execute_hooks,
    is_sharded,
    writing,
)

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
    update_duplicates: Any = None,
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
        update_duplicates: the attribute that is unique, or a tuple of attributes. A job that has
            the same value, and that nobody has claimed yet, gets the values of the row; any
            other row with this value is left alone.

    Returns:
        How many rows were inserted; None with `skip_duplicates` or `update_duplicates` on MySQL
        and MariaDB, which do not report it.

    Raises:
        ArgumentError: `priority` or `run_at` without the mixin, a naive time, a name of
            no column, a row that is no mapping, or one without a value that is to be unique.
            Also duplicates of a class whose rows are spread over several tables.
    """
    mapping = mapping_of(entity)
    ready, duplicates = mapping.word(UNCLAIMED), (skip_duplicates, update_duplicates)
    return insert_jobs(session, mapping, ready, rows, priority, run_at, *duplicates)


def insert_jobs(
    session: AnySession,
    mapping: QueueMapping,
    ready: str,
    rows: Iterable[Mapping[str, Any]],
    priority: int | None,
    run_at: datetime | None,
    skip_duplicates: bool,
    update_duplicates: Any,
    shard_by: Sequence[Any] = (),
) -> int | None:
    """Insert jobs that have the status `ready`; see :func:`enqueue`.

    Args:
        shard_by: tells the shard of all rows; else a ShardedSession's shard_chooser does for each.
    """
    unique = _unique_columns(mapping, update_duplicates)
    skip = skip_duplicates or bool(unique)
    if skip and not mapping.one_table:
        raise ArgumentError(
            f"a row of {mapping} is spread over {mapping.tables} tables, and one of them may "
            "refuse its part: find duplicates yourself, and call enqueue() without these arguments"
        )
    common = _common(mapping, priority=priority, run_at=run_at)
    if ready != mapping.word(UNCLAIMED):  # which the INSERT writes as a literal
        common[mapping.attributes["status"]] = ready
    session = any_session_of(session)
    if is_sharded(session) and not shard_by:
        joined = (_joined(common, row) for row in rows)
        options = (None, None, skip_duplicates, update_duplicates)
        return _total(
            [
                insert_jobs(session, mapping, ready, of_shard, *options, [shard])
                for shard, of_shard in _by_shard(session, mapping, joined)
            ]
        )
    inserted: list[int | None] = []
    # Where a session has hooks, the INSERT goes through it: they see that, and need no more.
    seen = has_execute_hooks(session) and not shard_by
    with writing(session, mapping, reads=seen, shard_by=shard_by) as writer:
        ordered = set(mapping.order_attributes)  # rows that give these may stand before others
        now = None
        if mapping.has("run_at"):
            # The time is read once and bound: so the batch is claimed first in, first
            # out, and drivers join rows without SQL functions into one statement.
            now = as_utc(writer.core(select(utc_now())).scalar_one())
            if common.setdefault(mapping.attributes["run_at"], now) is now:
                ordered.discard(mapping.attributes["run_at"])
        for alike in _alike(_joined(common, row) for row in rows):
            _check(mapping, alike)
            given = {mapping.mapper.columns[name].key for name in alike[0]}
            if missing := {column.key for column in unique} - given:
                names = ", ".join(sorted(missing))
                raise ArgumentError(f"update_duplicates= needs {names} in each row")
            if unique and not writer.database.locks_duplicates:
                # Else a claim between INSERT and UPDATE takes the old values, and the new are lost.
                _update_waiting(writer, mapping, ready, alike, unique, now)
            inserted.append(_insert(writer, mapping, alike, skip=skip))
            if unique:
                _update_waiting(writer, mapping, ready, alike, unique, now)
            mapping.head.changes += not ordered.isdisjoint(alike[0])
            if mapping.listeners:
                of_rows = [] if skip else alike
                note(writer, mapping, _event(mapping, of_rows, inserted[-1]))
            if mapping.wakes:
                note_claimable(writer, mapping)
        total = _total(inserted)
        # Under AUTOCOMMIT the rows are committed: an error after that would look like none were.
        if total is not None and total >= MANY and not writer.in_autocommit:
            writer.database.told_of_rows(writer.connection, mapping.table, total)
    return total


def _by_shard(
    session: Any, mapping: QueueMapping, rows: Iterator[dict[str, Any]]
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Divide rows, some thousands at a time, as the application's shard_chooser says.

    It gets an instance with the values of a row, as in a flush, and may set others.
    """
    from sqlalchemy.ext.horizontal_shard import set_shard_id

    columns = class_mapper(mapping.entity).columns  # which configures it, as a flush does
    while chunk := list(islice(rows, MANY)):
        of_shard: dict[Any, list[dict[str, Any]]] = {}
        for row in chunk:
            instance: Any = mapping.mapper.class_manager.new_instance()
            vars(instance).update(row)
            shard = session.shard_chooser(mapping.mapper, instance)
            chosen = {name: value for name, value in vars(instance).items() if name in columns}
            of_shard.setdefault(shard, []).append({**row, **chosen})
        for shard, some in of_shard.items():
            yield set_shard_id(shard), some


def _total(inserted: Sequence[int | None]) -> int | None:
    known = [count for count in inserted if count is not None]
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
    group_id = mapping.attributes.get("group_id")
    if group_id is not None and any(row.get(group_id) is not None for row in rows):
        raise ArgumentError(
            f"enqueue() counts no members, so it takes no {group_id}: give entities to after() or "
            "add_to_group()"
        )
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
    by_orm = not mapping.plain or written_by_mapper
    if by_orm and writer.shard is not None:
        raise ArgumentError(
            f"SQLAlchemy has no INSERT of many {mapping} for a ShardedSession, as its rows have a "
            "polymorphic identity or several tables: use session.add_all()"
        )
    if by_orm or (writer.hooked and writer.shard is None):
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
    return len(result.all()) if new.update_returning else None


def _unique_columns(mapping: QueueMapping, given: Any) -> list[Column[Any]]:
    """Return the columns of update_duplicates=."""
    if given is None:
        return []
    attributes = given if isinstance(given, tuple) else (given,)
    found = [mapping.mapper.columns.get(getattr(each, "key", "")) for each in attributes]
    columns = [column for column in found if isinstance(column, Column)]
    if not columns or len(columns) < len(found):
        raise ArgumentError(
            f"update_duplicates= takes an attribute of {mapping} that a unique constraint or index "
            f"covers, or a tuple of them, not {given!r}"
        )
    return columns


def _update_waiting(
    writer: Writer,
    mapping: QueueMapping,
    ready: str,
    rows: list[dict[str, Any]],
    unique: Sequence[Column[Any]],
    now: datetime | None,
) -> None:
    """Give the jobs that wait under the unique values of rows the other values of these rows.

    A row that was inserted just now gets its own values again: not every database tells which
    rows were. Where a row gives no time, the job keeps its own.
    """
    columns: dict[str, Any] = {name: mapping.mapper.columns[name] for name in rows[0]}
    fixed = {*unique, *mapping.keys, mapping.column("status")}
    values = {
        column: func.coalesce(bindparam(f"new_{name}", type_=column.type), column)
        if now is not None and name == mapping.attributes["run_at"]
        else bindparam(f"new_{name}", type_=column.type)
        for name, column in columns.items()
        if column not in fixed
    }
    if values:
        same = [
            column == bindparam(f"new_{name}", type_=column.type)
            for name, column in columns.items()
            if column in unique
        ]
        kind = mapping.mapper.polymorphic_on
        if kind is not None and mapping.mapper.inherits is not None:  # the table has siblings' rows
            ours = [each.polymorphic_identity for each in mapping.mapper.self_and_descendants]
            same.append(kind.in_(ours))
        statement = update(mapping.table).where(*same, mapping.has_status(ready)).values(values)
        parameters = [
            {f"new_{name}": None if value is now else value for name, value in row.items()}
            for row in rows
        ]
        writer.core(statement, parameters)


def _insert_into(target: Any, new: Database | None, *keys: Any) -> Any:
    """Return an INSERT; with a database `new`, of the rows that are new, and returning them."""
    if new is None:
        return insert(target)
    skipping = new.insert_new(target)
    return skipping.returning(*keys) if new.update_returning else skipping


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
