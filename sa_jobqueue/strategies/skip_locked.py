"""skip_locked and candidates: lock ready rows, passing over locked ones, and mark them.

skip_locked locks them in claim order. For candidates a plain read finds keys, and a locking read
by key takes what it gets. For criteria that the claim index does not serve that is the way on
InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import Executable, Select, func, select, true, update
from sqlalchemy.orm import Session

from ..dialects import Database
from ..fence.carried import CarriedFinish, CarriedJobs
from ..model.keys import repeated_key
from ..model.transitions import OWNER
from ..sessions.writer import Writer, writer_for
from .reads import (
    OVERDRAW,
    CandidateReads,
    LockingRead,
    ReadyLock,
    loading_options,
    refusal_without_skip_locked,
    row_columns,
)
from .ready_rows import LIMIT, SINGLE, adapted
from .spec import ClaimSpec, Request, Taken
from .strategy import Mark, Strategy

log = logging.getLogger("sa_jobqueue.lost")


class SkipLocked(Strategy):
    """One statement where a locking sub-select can be fenced, else two."""

    name = "skip_locked"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._ready_lock = ReadyLock(self.ready, marks=True)
        self._mark = Mark(spec, database)
        # The statements that carry a finish, by the finish, and whether they claim plain rows, and
        # a single one.
        self._turns: dict[tuple[CarriedFinish, bool, bool], Any] = {}

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        if self.in_one and not writer.hooked:
            if self._is_single(request):
                statement = self.claim_row if request.rows else self.claim_entity
                return self._run(writer, request, statement, {OWNER: request.owner})
            statement = self.claim_rows if request.rows else self.claim_entities
            return self._run(writer, request, statement, _parameters(request))
        with writer.atomically():
            return self._mark.write(writer, request, self._ready_lock.lock(writer, request))

    def statements(self) -> list[Executable]:
        return self._statements(self._ready_lock.read)

    def explainable(self) -> list[Executable]:
        return self._statements(self._ready_lock.read_from_start)

    def _statements(self, read: LockingRead) -> list[Executable]:
        if self.in_one:
            return [self.claim_entities]
        return [*self.ready.levels.statements(), read.entities, self._mark.by_key]

    @cached_property
    def in_one(self) -> bool:
        """Whether one statement claims: it must be fenced, and see all columns.

        The criteria that do_orm_execute hooks add to a SELECT would not reach the
        inside of an UPDATE: with such hooks a claim locks first. And many partitions
        joined to keys of several columns are read whole: of 200,000 rows in 64
        partitions 100 were claimed in 40 ms by one statement, in 18 ms by two. The loose
        scan below goes over one column, of rounds or of priorities.
        """
        joined = self.spec.partitioned and len(self.mapping.keys) > 1
        several = len(self.spec.levels) > 1
        return self.database.lock_once and self.mapping.plain and not joined and not several

    @cached_property
    def carries_finishes(self) -> bool:  # type: ignore[override]  # an attribute elsewhere
        """Whether one statement can finish jobs, too.

        The claim does not see what the finish writes: the criteria must not look at other rows.
        """
        return self.in_one and self.spec.looks_at_own_row

    def take_after(self, writer: Writer, request: Request, finish: CarriedJobs) -> Taken:
        single = self._is_single(request)
        form = (finish.finish, request.rows, single)
        statement = self._turns.get(form)
        if statement is None:
            statement = self._turns.setdefault(form, self._turn(*form))
        own = {OWNER: request.owner} if single else _parameters(request)
        return self._run(writer, request, statement, {**finish.parameters, **own})

    def _turn(self, finish: CarriedFinish, rows: bool, single: bool) -> Any:
        """Build the statement that carries a finish."""
        if single:
            return self._row(finish) if rows else self._entity(finish)
        return self._rows(finish) if rows else self._entities(finish)

    def _run(
        self, writer: Writer, request: Request, statement: Any, parameters: Mapping[str, Any]
    ) -> Taken:
        if request.rows:
            jobs: Sequence[Any] = writer.built(statement, parameters).all()
        else:
            jobs = writer.fresh(statement, parameters).scalars().all()
        if len(jobs) > request.limit:
            raise repeated_key(self.mapping)
        return self._mark.taken(request, jobs)

    # The hardest query: one UPDATE that locks, marks and returns up to n rows.
    #
    # UPDATE .. WHERE id IN (SELECT .. LIMIT n FOR UPDATE SKIP LOCKED) may be planned as
    # a nested loop that runs the sub-select again and again, each time for n other rows:
    # it claims more than n. An ARRAY of the sub-select is made once, whatever the plan.
    # It is 7 to 11 % faster than a join with a materialized CTE. The CTE remains for keys
    # of several columns: there is no array of rows, and ctid is not unique over the
    # partitions of a table.
    #
    # RETURNING answers in the order of the update, hence the outer SELECT, which sorts.
    # Its cost was not measurable at 10 and 100 rows (0.36 and 1.46 ms with it, 0.39 and
    # 1.43 ms without). A single job needs neither an array nor an order, and its statement
    # has 450 parts for SQLAlchemy instead of 619.

    @cached_property
    def claim_entities(self) -> Any:
        """The whole claim, of entities."""
        return self._entities()

    @cached_property
    def claim_rows(self) -> Any:
        """The whole claim, of plain rows."""
        return self._rows()

    @cached_property
    def claim_entity(self) -> Any:
        """The whole claim, of a single entity."""
        return self._entity()

    @cached_property
    def claim_row(self) -> Any:
        """The whole claim, of a single plain row."""
        return self._row()

    def _entity(self, finish: CarriedFinish | None = None) -> Any:
        return self._loaded_from(self._update_single(finish).returning(*self.mapping.table.c))

    def _row(self, finish: CarriedFinish | None = None) -> Any:
        columns = row_columns(self.mapping, during=None)
        return self._update_single(finish).returning(*columns)

    def _entities(self, finish: CarriedFinish | None = None) -> Any:
        return self._loaded_from(self._claim(self.mapping.table.c, finish))

    def _loaded_from(self, claim: Any) -> Any:
        """Load entities from the rows of a claim."""
        loading = loading_options(self.mapping)
        return select(self.mapping.entity).options(*loading).from_statement(claim)

    def _rows(self, finish: CarriedFinish | None = None) -> Any:
        return self._claim(row_columns(self.mapping, during=None), finish)

    def _claim(self, columns: Any, finish: CarriedFinish | None) -> Any:
        claimed = self._update(finish).returning(*self.mapping.table.c).cte("sa_jobqueue_claimed")
        order: list[Any] = [adapted(_clause(element), claimed) for element in self.spec.order]
        shown: list[Any] = [adapted(column, claimed) for column in columns]
        return select(*shown).order_by(*order)

    def _update(self, finish: CarriedFinish | None) -> Any:
        table, keys = self.mapping.table, self.mapping.keys
        statement = update(table).values(self._mark.values())
        if len(keys) == 1:
            picked = self._pick().correlate(None).scalar_subquery()
            same_key = keys[0] == func.any(func.array(picked))
            return statement.where(*_after(finish), same_key, self._mark.is_ready)
        picked_cte = self._pick().cte("sa_jobqueue_picked").prefix_with("MATERIALIZED")
        # In the order of the keys: an attribute may be named otherwise than its column.
        pairs = zip(keys, picked_cte.c, strict=True)
        same = (key == column for key, column in pairs)
        return statement.where(*same, self._mark.is_ready)

    def _update_single(self, finish: CarriedFinish | None) -> Any:
        """Mark a single row; a scalar sub-select is run once, too."""
        (key,) = self.mapping.keys
        statement = update(self.mapping.table).values(self._mark.values())
        same_key = key == self._pick(SINGLE).correlate(None).scalar_subquery()
        return statement.where(*_after(finish), same_key, self._mark.is_ready)

    def _pick(self, limit: Any = LIMIT) -> Select[Any]:
        """Lock the keys of the next rows."""
        ready, keys = self.ready, self.mapping.key_attributes
        if not self.spec.levels:
            return ready.locked(ready.select(*keys).limit(limit))
        # Priority by priority, or round by round, in one statement: a loose scan over the
        # priorities that have rows, and the due rows of each in turn, until there are
        # enough. LATERAL can only be a nested loop. So the priorities come in order, and
        # the rows of the next priority are locked only when they are needed.
        (role,) = self.spec.levels
        levels = self._levels_with_rows(role)
        due: Any = (
            select(*keys)
            .where(
                ready.found_by,
                self.mapping.attribute(role) == levels.c[role],
                *ready.due,
                *self.spec.where,
            )
            .order_by(*ready.walked)
            .limit(limit)
            .correlate(levels)
        )
        rows = ready.locked(due, of=False).lateral("sa_jobqueue_due")
        return select(*rows.c).select_from(levels.join(rows, true())).limit(limit)

    def _levels_with_rows(self, role: str) -> Any:
        """Select the priorities, or rounds, that have ready rows: the loose scan."""
        levels = self.ready.levels
        waiting = self.mapping.table.alias("sa_jobqueue_waiting")
        first = levels.first_in(waiting).scalar_subquery()
        name = "sa_jobqueue_priorities" if role == "priority" else "sa_jobqueue_rounds"
        found = select(first.label(role)).cte(name, recursive=True)
        (behind,) = levels.behind(waiting, [found.c[role]])
        following = levels.first_in(waiting).where(*behind)
        return found.union_all(
            select(following.scalar_subquery()).where(found.c[role].is_not(None))
        )


def _after(finish: CarriedFinish | None) -> list[Any]:
    return [] if finish is None else [finish.is_complete]


def _parameters(request: Request) -> dict[str, Any]:
    return {OWNER: request.owner, "sa_jobqueue_limit": request.limit}


def _clause(element: Any) -> Any:
    """Return the SQL expression of a mapped attribute, anything else as it is."""
    return element.__clause_element__() if hasattr(element, "__clause_element__") else element


#: The factor by which a claim draws more candidates each time others have locked too many.
GROWTH = 4


class Candidates(Strategy):
    """Read candidates without locks, then lock, check again and mark."""

    name = "candidates"
    candidates_elsewhere: ClassVar[bool] = True

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        # MySQL was seen to read and sort the whole backlog of a partitioned table.
        columns, by_index = self.mapping.key_attributes, spec.partitioned
        self.reads = CandidateReads(self.ready, *columns, by_index=by_index)
        self.mark = Mark(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        source = request.candidates_from
        if source is None and writer.keeps_snapshot:
            # A plain read would see the queue as it was when the caller's
            # transaction began; a locking read sees it as it is.
            return self._skip_locked.take(writer, request)
        with writer.atomically():
            locked, candidates, lost = self._lock(writer, request, source)
            taken = self.mark.write(writer, request, locked)
        if candidates and lost == candidates:
            log.info("%s: all %d candidates were lost to others", self.mapping, lost)
        return replace(taken, candidates=candidates, lost=lost)

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        return [*levels, self.reads.plain, self.reads.locking.entities, self.mark.by_key]

    @cached_property
    def _skip_locked(self) -> SkipLocked:
        return SkipLocked(self.spec, self.database)

    def _lock(
        self, writer: Writer, request: Request, source: Session | None
    ) -> tuple[list[Any], int, int]:
        """Draw and lock until there are as many jobs as wanted, or no more candidates.

        An open transaction may hold more of the next rows than one draw has. The draws
        grow, and begin at the head of the queue each time.

        Returns:
            What was locked, how many candidates were drawn, how many of them were lost.
        """
        size = request.limit * OVERDRAW
        drawn = self._draw(writer, source, size)
        locked, lost = self.reads.lock(writer, request, drawn)
        known = set(drawn)
        while len(locked) < request.limit and len(drawn) >= size:
            size *= GROWTH
            drawn = self._draw(writer, source, size)
            new = [key for key in drawn if key not in known]
            known.update(new)
            rest = replace(request, limit=request.limit - len(locked))
            more, lost_too = self.reads.lock(writer, rest, new)
            locked += more
            lost += lost_too
        return locked, len(known), lost

    def _draw(self, writer: Writer, source: Session | None, size: int) -> list[tuple[Any, ...]]:
        reader = writer if source is None else writer_for(source, self.mapping)
        read = self.reads.plain if source is None else self.reads.plain_elsewhere
        drawn = self.ready.levels.collect(
            reader,
            size,
            lambda **parameters: list(reader.rows(read, parameters).all()),
        )
        return [tuple(key) for key in drawn]
