"""per_key: at most so many claimed jobs of each serial key, enforced by the database.

::

    JobQueue(Email, serial_by=Email.account_id)

A claim has five steps: it looks which jobs are next and which of them their keys allow;
it locks those keys, waiting for none; it looks again, in a newer snapshot; it locks the
rows; it marks them. Nobody else can claim a job of a locked key until this transaction
has ended, and whoever locks the key after us sees what we have claimed.

Without the second look, two claimers that found two different heads of one key (since
a sooner job came in between) would claim both. Without the locks, two claimers that
look at the same time would both claim.

The index of a serial key holds status, key, attempts, and the claim order. So among the
ready jobs of a key those that were tried stand last, and the key's next job is its last
entry if that job was tried, else its first entry: two entries are read, however many
jobs wait. A job in its retry delay is looked at too: it is the next of its key, and
keeps the others waiting.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from itertools import count
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    Index,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import aliased
from sqlalchemy.sql import operators

from ..dialects import Database
from ..dialects.database import SerialKeyLocks
from ..errors import UnsupportedDatabase
from ..model.indexes import key_index
from ..model.keys import columns_are_in, key_batches, key_values
from ..model.status import status_is
from ..sessions.writer import Writer
from .candidates import OVERDRAW, ByCandidates
from .key_limits import SKIP, Candidate, CandidatePicker, Key, KeyLimit
from .ready_rows import LIMIT, adapted
from .spec import ClaimSpec, Request, Taken
from .strategy import kept

#: How many candidates a claim reads at first, in claim order, and by which factor it reads
#: more each time when all of their keys were taken.
WINDOW, GROWTH = 16, 8

#: A claim walks from key to key, not from job to job, where a key has this many jobs.
JOBS_OF_A_KEY = 4

#: How often a claim looks again: after a job was no longer its key's next, or after others
#: were claiming from all keys that allow several jobs.
TRIES = 8
PAUSE = timedelta(milliseconds=10)

_NUMBER_1: ColumnElement[int] = literal_column("1")

#: The parameter for how many jobs of a key come before the one that is read.
BEFORE = "sa_jobqueue_before"


class PerKey(ByCandidates):
    """Lock keys, look again, lock and mark rows."""

    name = "per_key"

    @property
    def by_index(self) -> bool:
        """True: MySQL walked over done rows without its claim index."""
        return True

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        self._locks = _key_locks(database)
        super().__init__(spec, database, indexed=indexed)

    @staticmethod
    def refusal(database: Database) -> str | None:
        # _key_locks() has checked, and its error tells more.
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_transaction(writer)
        writer.lock_writes(self.mapping.table)
        picker = CandidatePicker(self.spec.limits, request.limit)
        taken, tries = Taken([]), 0
        while tries < TRIES:
            picker.start()
            self._lock_keys(writer, picker)
            fitting = picker.still_fitting(self._allowed(writer, picker.taken))
            rest = replace(request, limit=picker.limit)
            locked, held = self.lock(writer, rest, fitting)
            if locked:
                part = self.mark(writer, request, locked)
                taken = Taken([*taken.jobs, *part.jobs], [*taken.dates, *part.dates])
                picker.limit -= len(locked)
            if held:
                # Others have locked these rows, for whatever reason: go on behind them.
                picker.skipped.update(fitting)
            elif locked or not self._may_find_more(writer, picker):
                break
            else:
                tries += 1
            if not picker.limit:
                break
        lost = max(0, picker.tried - len(taken.jobs))
        return replace(taken, candidates=picker.tried, lost=lost)

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        lock, allowed = self._locks.statement(), self.allowed()
        locks = [] if lock is None else [lock, allowed]
        levels = self.ready.levels.statements()
        return [*levels, self.look(), allowed, *locks, self.lock_by_keys(), self.mark_by_keys()]

    def _may_find_more(self, writer: Writer, picker: CandidatePicker) -> bool:
        """Tell whether another look may find more; wait a moment where others are claiming."""
        if picker.taken:
            return True
        if picker.may_soon_allow:
            writer.database.pause(writer.connection, PAUSE * random.random())
        return picker.may_soon_allow

    def _lock_keys(self, writer: Writer, picker: CandidatePicker) -> None:
        """Lock as many keys as jobs are wanted, and no others, in claim order."""
        for found in self._found(writer, picker):
            waiting = deque(found)
            while picked := picker.pick(waiting):
                names = {name for job in picked for name in job.locks if name is not None}
                locked = self._locks.take(writer.connection, names) if names else set()
                picker.settle(picked, locked)
            if picker.has_enough:
                return

    # -- which jobs are next --------------------------------------------

    def _found(self, writer: Writer, picker: CandidatePicker) -> Iterator[list[Candidate]]:
        """Yield jobs that their keys allow, in claim order, until all are looked at.

        It begins with the jobs at the head of the queue. Where a few keys have most of
        them, it goes on from key to key: then a taken key is passed over with all its
        jobs. Else the database passes over the jobs whose keys are taken: an idle claim
        that read the jobs of 300,000 taken keys took 5 seconds and 200 MB.
        """
        size, look = max(WINDOW, picker.limit * OVERDRAW), self.look()
        known: set[Key] = set()
        seen: Counter[Any] = Counter()
        while True:
            drawn = self._candidates(self.draw(writer, size, look))
            new = [job for job in drawn if job.key not in known]
            known.update(job.key for job in new)
            yield self._allowed(writer, self._first_of_keys(new, seen))
            if len(drawn) < size:
                return
            few_keys = len(seen) * JOBS_OF_A_KEY <= len(drawn)
            # Hooks add criteria to jobs alone, and the walk reads keys.
            if few_keys and self.walks_keys and not writer.hooked:
                yield from self._from_key_to_key(writer, picker)
                return
            size, look = size * GROWTH, self._look_for_free_keys()

    @kept
    def _look_for_free_keys(self) -> Any:
        """Read the next candidates, without those whose keys are taken."""
        return self.look().where(*self.of_free_keys)

    def _from_key_to_key(
        self, writer: Writer, picker: CandidatePicker
    ) -> Iterator[list[Candidate]]:
        """Yield the first job of each key, then the second, while keys allow one more."""
        for before in count():
            jobs = self._allowed(writer, self._of_each_key(writer, picker.limit, before))
            yield jobs
            if self.most == 1 or not any(map(picker.has_room, jobs)):
                return

    def _of_each_key(self, writer: Writer, limit: int, before: int) -> list[Candidate]:
        """Walk from key to key by the index; read one job of each, in claim order.

        Args:
            before: how many jobs of its key come before that job.
        """
        heads = [tuple(head) for head in writer.rows(self.heads_of_keys(), {BEFORE: before})]
        if not before and self.unkeyed() is not None:
            unkeyed = writer.rows(self.unkeyed(), {"sa_jobqueue_limit": limit})
            heads += [tuple(key) for key in unkeyed]
        ranked: list[Candidate] = []
        for batch in key_batches([head for head in heads if head[0] is not None]):
            keys = {"sa_jobqueue_keys": key_values(batch)}
            ranked += self._candidates(writer.rows(self.rank(), keys))
        return ranked

    def _candidates(self, rows: Iterable[Any]) -> list[Candidate]:
        width, limits = len(self.mapping.keys), len(self.spec.limits)
        return [
            Candidate(tuple(row[:width]), tuple(row[width : width + limits]), bool(row[-1]))
            for row in rows
        ]

    def _first_of_keys(self, drawn: Sequence[Candidate], seen: Counter[Any]) -> list[Candidate]:
        """Leave out jobs behind as many others of their key as it allows.

        Where several limits meet, and none is serial, leave out nothing: another limit may
        keep the jobs before back.
        """
        if self.walked is None:
            return list(drawn)
        first = []
        for job in drawn:
            name = job.locks[self.walked]
            # A job that was tried may be its key's next all the same.
            if name is None or job.tried or seen[name] < self.most:
                first.append(job)
            if name is not None:
                seen[name] += 1
        return first

    def _allowed(self, writer: Writer, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are ready, and allowed by their keys, as committed now."""
        width = len(self.mapping.keys)
        claimed: dict[Key, tuple[int, ...]] = {}
        for batch in key_batches([job.key for job in candidates]):
            for row in writer.rows(self.allowed(), {"sa_jobqueue_keys": key_values(batch)}):
                claimed[tuple(row[:width])] = tuple(row[width:])
        return [replace(job, claimed=claimed[job.key]) for job in candidates if job.key in claimed]

    # -- statements: candidates -----------------------------------------

    def candidate_columns(self) -> list[Any]:
        """What is read of a candidate: primary key, lock names, and whether it was tried.

        It has a lock name for each limit, NULL where it has no key of this limit.
        """
        table = self.mapping.table
        names = [self._locks.token(table, limit.columns) for limit in self.spec.limits]
        labelled = [name.label(f"sa_jobqueue_token_{index}") for index, name in enumerate(names)]
        tried = self.mapping.attribute("attempts") > 0 if self.mapping.has("attempts") else false()
        return [*self.mapping.key_attributes, *labelled, tried.label("sa_jobqueue_tried")]

    @kept
    def rank(self) -> Any:
        """Read some candidates by primary key, in claim order."""
        by_key = select(*self.candidate_columns()).where(self.ready.key_is_in("sa_jobqueue_keys"))
        return by_key.order_by(*self.spec.order)

    @cached_property
    def of_free_keys(self) -> list[ColumnElement[bool]]:
        """The criteria that the keys of a job may have another claimed job, as committed now."""
        return [self._is_free(self.mapping.entity, limit) for limit in self.spec.limits]

    # -- what keys allow ------------------------------------------------

    @kept
    def allowed(self) -> Any:
        """Select the jobs, of those given, that are ready and that all their keys allow.

        With them comes the number of claimed jobs of each key, where it may be more than
        one. The jobs in question are an alias, so that the sub-selects are of the class
        itself: criteria of the session's hooks join the sub-selects.
        """
        job: Any = aliased(self.mapping.entity, name="sa_jobqueue_job")
        keys = [getattr(job, key.key) for key in self.mapping.key_attributes]
        same = [mine == key for mine, key in zip(self.mapping.key_attributes, keys, strict=True)]
        # Counted, and so looked up by the key: of EXISTS planners may make a join that reads all
        # ready jobs.
        ready = select(func.count()).where(*same, *self.ready.criteria).correlate(job)
        counts = [self._count(job, limit) for limit in self.spec.limits]
        free = [self._is_free(job, limit) for limit in self.spec.limits]
        heads = [self._is_head(job, keys, limit) for limit in self.spec.limits if limit.serial]
        return select(*keys, *counts).where(
            columns_are_in(keys, "sa_jobqueue_keys", self.database),
            ready.scalar_subquery() > 0,
            *free,
            *heads,
        )

    def _count(self, job: Any, limit: KeyLimit) -> ColumnElement[int]:
        if limit.most == 1:
            return literal_column("0")
        return self._claimed(job, limit).scalar_subquery()

    def _is_free(self, job: Any, limit: KeyLimit) -> ColumnElement[bool]:
        if limit.most == 1:
            return ~exists(self._claimed(job, limit).with_only_columns(_NUMBER_1))
        return self._count(job, limit) < limit.most

    def _claimed(self, job: Any, limit: KeyLimit) -> Select[Any]:
        """Select the claimed jobs of a job's key.

        Without the queue's criteria: a row may not fulfil them any more since it was claimed.
        Only criteria of columns that lead the claim index are kept: these tell the queues
        of one table apart.
        """
        table = self.mapping.table.alias("sa_jobqueue_claimed")
        equalities = [adapted(criterion, table) for criterion in self.spec.equalities]
        same = [
            table.c[_column(attribute).key] == getattr(job, attribute.key)
            for attribute in limit.columns
        ]
        status = table.c[self.mapping.column("status").key]
        found = select(func.count()).select_from(table)
        return found.where(status_is(status, *self.spec.in_progress), *equalities, *same).correlate(
            job
        )

    # -- the head of a key ----------------------------------------------

    def _is_head(self, job: Any, keys: Sequence[Any], limit: KeyLimit) -> ColumnElement[bool]:
        """Compare a job with the next job of its key, if it has a key."""
        same = [mine == getattr(job, mine.key) for mine in limit.columns]
        heads = [self._head(mine, limit, same, job) for mine in self.mapping.key_attributes]
        no_key = [getattr(job, attribute.key).is_(None) for attribute in _nullable(limit)]
        return or_(*no_key, and_(*(head == key for head, key in zip(heads, keys, strict=True))))

    def _head(self, key: Any, limit: KeyLimit, same: Sequence[Any], of: Any) -> ColumnElement[Any]:
        """Select a column of the primary key of a serial key's next job."""
        first: ColumnElement[Any]
        first = self._first(key, limit, same).correlate(of).scalar_subquery()
        if not limit.serial or not self.mapping.has("attempts"):
            return first
        tried = self._tried(key, limit, same).correlate(of).scalar_subquery()
        either: ColumnElement[Any] = func.coalesce(tried, first)
        return either

    def _first(self, key: Any, limit: KeyLimit, same: Sequence[Any]) -> Any:
        found = select(key).where(*self.ready.criteria, *same)
        found = found.order_by(*self._order_in_key(limit)).limit(_NUMBER_1)
        if limit.most > 1:
            found = found.offset(bindparam(BEFORE, type_=Integer))
        return self._by_index_of(limit, found)

    def _tried(self, key: Any, limit: KeyLimit, same: Sequence[Any]) -> Any:
        """Select the last job of a key, if it was tried; only one entry of the index is read.

        With on_retry="skip", jobs in their retry delay are passed over.
        """
        attempts = self.mapping.attribute("attempts")
        skipping = [or_(attempts == 0, *self.ready.due)] if self.spec.on_retry == SKIP else []
        found = (
            select(case((attempts > 0, key)))
            .where(self.ready.has_status, *skipping, *self.spec.where, *same)
            .order_by(*map(_reversed, self._order_in_key(limit)))
            .limit(_NUMBER_1)
        )
        return self._by_index_of(limit, found)

    def _order_in_key(self, limit: KeyLimit) -> list[Any]:
        """Order as the index of the key does; MySQL needs its leading columns in it too."""
        mapping = self.mapping
        tried = [mapping.attribute("attempts")] if mapping.has("attempts") else []
        leading = (*mapping.equality, mapping.attribute("status"), *limit.columns)
        return [*leading, *tried, *self.spec.order]

    # -- from key to key ------------------------------------------------

    @property
    def walks_keys(self) -> bool:
        """Whether an index can walk over the keys that have ready jobs."""
        served = not self.spec.order_by and len(self.spec.equalities) == len(self.mapping.equality)
        index = self.walked
        return served and index is not None and self._index_of(self.spec.limits[index]) is not None

    @cached_property
    def walked(self) -> int | None:
        """The index, in ``spec.limits``, of the limit whose first jobs of each key suffice.

        Every other job of such a key comes behind its first. None where several limits meet
        and none is serial: there another limit may keep the first job back.
        """
        serial = [index for index, limit in enumerate(self.spec.limits) if limit.serial]
        if not serial and len(self.spec.limits) == 1:
            return 0
        return serial[0] if serial else None

    @property
    def most(self) -> int:
        """How many jobs of a walked key may be claimed at a time."""
        assert self.walked is not None
        return self.spec.limits[self.walked].most

    @kept
    def heads_of_keys(self) -> Any:
        """Select the primary key of the next job of every serial key that has ready jobs.

        Where a key allows several jobs, that of the one behind so many others of its key.
        """
        assert self.walked is not None
        limit = self.spec.limits[self.walked]
        keys = self._distinct(limit) if self.database.skips_repeats else self._stepping(limit)
        same = [mine == keys.c[_column(mine).key] for mine in limit.columns]
        heads = [self._head(mine, limit, same, keys) for mine in self.mapping.key_attributes]
        found = keys.c[_column(limit.columns[0]).key].is_not(None)  # the last step finds NULL
        return select(*heads).select_from(keys).where(found)

    def _distinct(self, limit: KeyLimit) -> Any:
        """Select each key once.

        With the index's columns before it: else the database would read all entries.
        """
        mapping = self.mapping
        leading = [_column(attribute) for attribute in mapping.equality]
        columns = [_column(attribute) for attribute in limit.columns]
        statement = (
            select(*leading, mapping.column("status"), *columns)
            .where(*self.spec.equalities, status_is(mapping.column("status"), self.spec.ready))
            .where(*(column.is_not(None) for column in columns))
            .distinct()
        )
        return self._by_index_of(limit, statement).subquery("sa_jobqueue_keys")

    def _stepping(self, limit: KeyLimit) -> Any:
        """Select one key after the other, each by one step into the index."""
        waiting = self.mapping.table.alias("sa_jobqueue_waiting")
        columns = [waiting.c[_column(attribute).key] for attribute in limit.columns]
        first = [self._next_key(waiting, columns, column) for column in columns]
        labelled = [value.label(c.key) for value, c in zip(first, columns, strict=True)]
        keys = select(*labelled).cte("sa_jobqueue_keys", recursive=True)
        behind = _tuple(columns) > _tuple([keys.c[column.key] for column in columns])
        further = [self._next_key(waiting, columns, column, behind) for column in columns]
        return keys.union_all(select(*further).where(keys.c[columns[0].key].is_not(None)))

    def _next_key(
        self, waiting: FromClause, columns: Sequence[Any], what: Any, *behind: ColumnElement[bool]
    ) -> ColumnElement[Any]:
        leading = [adapted(criterion, waiting) for criterion in self.spec.equalities]
        status = waiting.c[self.mapping.column("status").key]
        found = select(what).where(*leading, status_is(status, self.spec.ready), *behind)
        with_key = [column.is_not(None) for column in columns]
        return found.where(*with_key).order_by(*columns).limit(_NUMBER_1).scalar_subquery()

    @kept
    def unkeyed(self) -> Any:
        """Select the primary keys of ready jobs without a serial key; None if all have one."""
        assert self.walked is not None
        limit = self.spec.limits[self.walked]
        nullable = _nullable(limit)
        if not nullable:
            return None
        found = (
            select(*self.mapping.key_attributes)
            .where(*self.ready.criteria)
            .where(or_(*(column.is_(None) for column in nullable)))
            .order_by(*self._order_in_key(limit))
            .limit(LIMIT)
        )
        return self._by_index_of(limit, found)

    # -- the index of a key ---------------------------------------------

    def _by_index_of(self, limit: KeyLimit, statement: Any) -> Any:
        index = self._index_of(limit)
        words = None if index is None else self.database.forced_index(index)
        return statement if words is None else statement.with_hint(self.mapping.table, words)

    def _index_of(self, limit: KeyLimit) -> Index | None:
        return key_index(self.mapping, limit.columns) if self.indexed else None


def _key_locks(database: Database) -> SerialKeyLocks:
    """Return how a database locks keys.

    Raises:
        UnsupportedDatabase: it cannot keep limits of keys.
    """
    locks = database.serial_key_locks()
    if locks is None or not (database.skip_locked or database.one_writer):
        raise UnsupportedDatabase(
            f"{database} cannot keep serial_by= and limit_by=: it cannot lock keys, or has no "
            "SELECT .. FOR UPDATE SKIP LOCKED (MySQL 8.0.1, MariaDB 10.6). Upgrade the server, "
            "or use strict_order=True"
        )
    return locks


def _check_transaction(writer: Writer) -> None:
    if writer.in_autocommit:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= lock keys until the claim's transaction ends, and an "
            "AUTOCOMMIT connection has no transaction: use a session without AUTOCOMMIT"
        )
    if not writer.sees_commits:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= must see what was committed while they waited for a key, "
            "and an isolation level other than READ COMMITTED hides that. Begin the transaction "
            "as READ COMMITTED, as with "
            'create_engine(.., isolation_level="READ COMMITTED")'
        )


def _column(attribute: Any) -> Any:
    """Return the table's column of a mapped attribute."""
    return attribute.property.columns[0]


def _nullable(limit: KeyLimit) -> list[Any]:
    return [column for column in limit.columns if _column(column).nullable]


def _reversed(element: Any) -> Any:
    """Return an ORDER BY element in the opposite direction."""
    clause = element.__clause_element__() if hasattr(element, "__clause_element__") else element
    if getattr(clause, "modifier", None) is operators.desc_op:
        return clause.element.asc()
    return clause.desc()


def _tuple(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else tuple_(*columns)
