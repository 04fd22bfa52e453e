"""How strategies read jobs: by one locking read in claim order, or by candidates.

A candidate is a row that a claim looks at before it locks it. The plain read may use
any criteria, walk any index, and run outside the transaction or on a replica: it locks
nothing. The locking read goes by primary key, and checks the status and all criteria
again, so what a lagging replica returns is only ever a proposal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Column, ColumnElement, DateTime, Select, select, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import selectinload
from sqlalchemy.types import TypeDecorator

from ..dialects import Database, is_missing_index
from ..dialects.clock import UtcText, as_utc
from ..model.indexes import claim_index
from ..model.keys import by_key, key_values
from ..model.mapping import TIME_ROLES, QueueMapping
from ..model.transitions import claimed
from ..sessions.writer import Writer
from .ready_rows import ReadyRows
from .spec import Request

log = logging.getLogger("sa_jobqueue.claim")


class ReadBack:
    """A SELECT of jobs that were marked or locked before.

    Args:
        build: makes the SELECT of the columns that it is given.
    """

    def __init__(self, mapping: QueueMapping, build: Callable[..., Any]) -> None:
        self._mapping = mapping
        self._build = build

    @cached_property
    def entities(self) -> Any:
        """The SELECT of entities."""
        return self._build(self._mapping.entity).options(*loading_options(self._mapping))

    @cached_property
    def rows(self) -> Any:
        """The SELECT of plain rows."""
        return self._build(*row_columns(self._mapping, during=None, orm=True))

    def run(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        """Read jobs; overwrite what the session had loaded before."""
        if request.rows:
            return list(writer.rows(self.rows, parameters).all())
        return list(writer.fresh(self.entities, parameters).scalars().all())


class LockingRead:
    """A SELECT that locks jobs, with the time that the mark will write.

    Args:
        build: makes the SELECT of the columns that it is given.
        marks: whether a mark follows; then plain rows are read as they will be once
            they are marked.
    """

    def __init__(self, ready: ReadyRows, build: Callable[..., Any], *, marks: bool = True) -> None:
        self._ready = ready
        self._build = build
        self._marks = marks

    @cached_property
    def entities(self) -> Any:
        """The locking read of entities, each with the time of the claim."""
        moment = self._ready.database.moment()
        read = self._build(self._ready.mapping.entity, moment.label("sa_jobqueue_date"))
        return read.options(*loading_options(self._ready.mapping))

    @cached_property
    def rows(self) -> Any:
        """The locking read of plain rows."""
        moment = self._ready.database.moment()
        during = self._ready.spec.during if self._marks else None
        return self._build(*row_columns(self._ready.mapping, during, moment, orm=True))

    def run(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        """Lock jobs; overwrite what the session had loaded before.

        Returns:
            Rows, or pairs of an entity and the time of the claim.
        """
        if request.rows:
            owner = {"sa_jobqueue_owner": request.owner} if self._marks else {}
            return list(writer.rows(self.rows, {**parameters, **owner}).all())
        return list(writer.fresh(self.entities, parameters).all())

    def forget(self) -> None:
        """Build the statements anew at their next use."""
        for form in ("entities", "rows"):
            vars(self).pop(form, None)


def loading_options(mapping: QueueMapping) -> list[Any]:
    """List options for a SELECT of entities that locks: no joins but the entity's own.

    FOR UPDATE is refused on the nullable side of an outer join, and would lock the
    joined rows elsewhere.
    """
    return [
        selectinload(getattr(mapping.entity, relationship.key))
        for relationship in mapping.mapper.relationships
        if relationship.lazy in ("joined", False)
    ]


#: How many candidates are read for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4


class CandidateReads:
    """The reads of candidates of one queue on one database.

    Args:
        columns: what the plain read selects; the primary key comes first.
        by_index: bind the plain read to the claim index where the index serves.
    """

    def __init__(self, ready: ReadyRows, *columns: Any, by_index: bool) -> None:
        self._ready = ready
        self._columns = columns
        self._by_index = by_index
        self.locking = LockingRead(ready, self.lock_by_keys)

    @cached_property
    def plain(self) -> Any:
        """The plain read of the next candidates."""
        ready, read = self._ready, self.plain_elsewhere
        if self._by_index and ready.spec.served and ready.claim_index_hint:
            return ready.by_claim_index(read)
        hint = ready.database.order_hint
        unhinted = hint is None or ready.spec.order_by or not ready.mapping.table.primary_key
        return read if unhinted else read.with_hint(ready.mapping.table, hint)

    @cached_property
    def plain_elsewhere(self) -> Any:
        """The plain read for another session, whose table may be a copy without indexes."""
        return self._ready.select(*self._columns, plain=True)

    def lock_by_keys(self, *columns: Any) -> Select[Any]:
        """Select the rows of some keys that are still claimable; lock them, pass over locked."""
        ready = self._ready
        statement = (
            select(*columns)
            .where(ready.key_is_in("sa_jobqueue_keys"), *ready.criteria)
            .order_by(*ready.spec.order)
        )
        return ready.locked(by_key(statement, ready.mapping.table, ready.database))

    def lock(
        self, writer: Writer, request: Request, candidates: Sequence[tuple[Any, ...]]
    ) -> tuple[list[Any], int]:
        """Lock candidates in claim order, as many at a time as are still wanted.

        With all of them in one read and a LIMIT, InnoDB would also lock the rows behind
        the limit wherever it sorts, and nobody else could claim those.

        Returns:
            What was locked, and how many candidates were lost to others. Candidates that
            were not tried are not lost.
        """
        locked: list[Any] = []
        tried = 0
        while len(locked) < request.limit and tried < len(candidates):
            wanted = candidates[tried : tried + request.limit - len(locked)]
            tried += len(wanted)
            parameters = {"sa_jobqueue_keys": self.lockable(wanted)}
            locked += self.locking.run(writer, request, parameters)
        return locked, tried - len(locked)

    def lockable(self, identities: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return keys for a locking read that leaves no lock on rows that fail its criteria.

        InnoDB looks a single key up in another way, and keeps the row locked until
        the transaction ends: then the row's owner could not finish it. A second key of
        NULL prevents that, and finds no row.
        """
        values = key_values(identities)
        if len(identities) == 1 and self._ready.database.keeps_one_key:
            width = len(self._ready.mapping.keys)
            return [values[0], None if width == 1 else (None,) * width]
        return values


def refusal_without_skip_locked(database: Database) -> str | None:
    """Return why a database cannot pass over locked rows; None if it can."""
    return None if database.skip_locked else "it has no SELECT .. FOR UPDATE SKIP LOCKED"


class ReadyLock:
    """The locking read of ready rows, bound to the claim index where an optimizer may stray."""

    def __init__(self, ready: ReadyRows, *, marks: bool) -> None:
        self._ready = ready
        self.read = LockingRead(ready, self._build, marks=marks)
        self.read_from_start = LockingRead(ready, self._build_from_start, marks=marks)
        self.read_from_place = LockingRead(ready, self._build_from_place, marks=marks)
        self._without_index = False

    def lock(
        self, writer: Writer, request: Request, start: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Lock up to ``request.limit`` ready rows in claim order, level by level.

        Args:
            start: the parameters of a place to begin at, in one level.
        """
        if start:
            parameters = {"sa_jobqueue_limit": request.limit, **start}
            return self._lock_some(writer, request, parameters, self.read_from_place)
        return self._ready.levels.collect(
            writer,
            request.limit,
            lambda **parameters: self._lock_some(
                writer, request, parameters, self._read_for(writer)
            ),
        )

    def _lock_some(
        self, writer: Writer, request: Request, parameters: dict[str, Any], read: LockingRead
    ) -> list[Any]:
        try:
            return read.run(writer, request, parameters)
        except Exception as error:  # a handle_error listener may raise what it likes
            if self._without_index or not is_missing_index(error):
                raise
        log.warning(
            "%s has no claim index; claims may lock more than they take", self._ready.mapping
        )
        self._without_index = True
        for each in (self.read, self.read_from_start, self.read_from_place):
            each.forget()
        return self._lock_some(writer, request, parameters, read)

    def _read_for(self, writer: Writer) -> LockingRead:
        """Choose the read: one that begins at the first ready row must see all commits."""
        misses_commits = not writer.begun_by_verb
        return self.read_from_start if misses_commits and self._ready.from_first else self.read

    def _build(self, *columns: Any) -> Select[Any]:
        read = self._build_from_start(*columns)
        return read if self._without_index else read.where(*self._ready.from_first)

    def _build_from_place(self, *columns: Any) -> Select[Any]:
        return self._build_from_start(*columns, from_place=True)

    def _build_from_start(self, *columns: Any, from_place: bool = False) -> Select[Any]:
        read = self._ready.locked(self._ready.select(*columns, from_place=from_place))
        return read if self._without_index else self._by_claim_index(read)

    def _by_claim_index(self, read: Select[Any]) -> Select[Any]:
        """Bind the read by a hint, else by FORCE INDEX, which is an error without the index."""
        ready = self._ready
        index = claim_index(ready.mapping)
        if index is None or ready.spec.order_by:
            return read
        if ready.claim_index_hint:
            return ready.by_claim_index(read)
        words = ready.database.forced_index(index)
        return read if words is None else read.with_hint(ready.mapping.table, words)


class ReadAsUTC(TypeDecorator[datetime]):
    """A type that reads points in time as aware UTC; for result columns, never for a table.

    The rows of a claim have the same owner_date, so it is converted once for all of them.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Return a function that makes a driver's value aware UTC, and remembers the last one."""
        read = self.impl_instance.result_processor(dialect, coltype)
        known: tuple[Any, datetime | None] = (None, None)

        def in_utc(value: Any) -> datetime | None:
            nonlocal known
            last, moment = known
            if value != last:
                found = value if read is None else read(value)
                moment = None if found is None else as_utc(found)
                known = (value, moment)
            return moment

        return in_utc


def row_columns(
    mapping: QueueMapping,
    during: str | None = None,
    moment: ColumnElement[Any] | None = None,
    *,
    orm: bool = False,
) -> list[ColumnElement[Any]]:
    """List the table's columns for a row.

    Args:
        during: the status that a claim is about to write: the columns have the values
            of the claim; None: the columns as they are.
        moment: the time that the claim writes.
        orm: as mapped attributes, so that hooks of the session can add criteria.
    """
    written = claimed(mapping, during, moment) if during and moment is not None else {}
    times = {mapping.column(role) for role in TIME_ROLES if mapping.has(role)}
    return [
        _named(_read(_value(mapping, column, written, orm), is_time=column in times), column)
        for column in mapping.table.c
    ]


def _named(value: Any, column: Column[Any]) -> Any:
    return value if value is column and column.name == column.key else value.label(column.key)


def _value(mapping: QueueMapping, column: Column[Any], written: Any, orm: bool) -> Any:
    if column in written or not orm or not mapping.mapper.columns.contains_column(column):
        return written.get(column, column)
    return getattr(mapping.entity, mapping.mapper.get_property_by_column(column).key)


def _read(value: Any, *, is_time: bool) -> Any:
    told = is_time and not isinstance(value.type, UtcText)
    return type_coerce(value, ReadAsUTC) if told else value
