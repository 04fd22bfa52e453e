"""skip_locked and candidates: lock ready rows, passing over locked ones, and mark them.

skip_locked locks them in claim order. For candidates a plain read finds keys, and a locking read
by key takes what it gets. For criteria that the claim index does not serve that is the way on
InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Executable, Select, func, select, true, update
from sqlalchemy.orm import Session

from ..dialects import Database
from ..fence.carried import CarriedFinish, CarriedJobs
from ..model.keys import repeated_key
from ..model.transitions import OWNER
from ..sessions.writer import Writer, writer_for
from .place import Place, Start, with_rest
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
        self._place = Place.of(spec)
        self._built: dict[Any, Any] = {}  # the statements of whole claims, by their arguments

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        if self._place is None:
            return self._take(writer, request, {})
        taken = self._place.take(writer, request, self._take)
        return with_rest(writer, request, taken, self._take)

    def _take(self, writer: Writer, request: Request, start: Start) -> Taken:
        if self.in_one and not writer.hooked:
            return self._take_in_one(writer, request, start)
        with writer.atomically():
            locked = self._ready_lock.lock(writer, request, start)
            return self._mark.write(writer, request, locked)

    def statements(self) -> list[Executable]:
        return self._statements(self._ready_lock.read)

    def explainable(self) -> list[Executable]:
        return self._statements(self._ready_lock.read_from_start)

    def _statements(self, read: LockingRead) -> list[Executable]:
        if self.in_one:
            return [self._statement()]
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
        take = partial(self._take_in_one, finish=finish)
        if self._place is None:
            return take(writer, request, {})
        return self._place.take(writer, request, take)

    def take_rest(self, writer: Writer, request: Request, taken: Taken) -> Taken:
        return with_rest(writer, request, taken, self._take)

    def _take_in_one(
        self, writer: Writer, request: Request, start: Start, finish: CarriedJobs | None = None
    ) -> Taken:
        single = self._is_single(request)
        form = (request.rows, single, bool(start), None if finish is None else finish.finish)
        statement = self._built.get(form)
        if statement is None:
            statement = self._built.setdefault(form, self._statement(*form))
        parameters: dict[str, Any] = {OWNER: request.owner, **start}
        if not single:
            parameters["sa_jobqueue_limit"] = request.limit
        if finish is not None:
            parameters.update(finish.parameters)
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

    def _statement(
        self,
        rows: bool = False,
        single: bool = False,
        from_place: bool = False,
        finish: CarriedFinish | None = None,
    ) -> Any:
        """Build the whole claim, of plain rows or of entities.

        Args:
            from_place: it begins at a place in the claim order.
            finish: what else the statement does.
        """
        mapping = self.mapping
        columns = row_columns(mapping, during=None) if rows else mapping.table.c
        pick = self._pick(SINGLE if single else LIMIT, from_place=from_place)
        first = () if finish is None else (finish.is_complete,)
        marked = self._update(pick, *first, single=single)
        if single:
            claim = marked.returning(*columns)
        else:
            claimed = marked.returning(*mapping.table.c).cte("sa_jobqueue_claimed")
            order: list[Any] = [adapted(_clause(element), claimed) for element in self.spec.order]
            claim = select(*(adapted(column, claimed) for column in columns)).order_by(*order)
        if rows:
            return claim
        return select(mapping.entity).options(*loading_options(mapping)).from_statement(claim)

    def _update(self, pick: Select[Any], *first: ColumnElement[bool], single: bool) -> Any:
        """Mark the rows that were picked, if the `first` criteria hold."""
        keys, statement = self.mapping.keys, update(self.mapping.table).values(self._mark.values())
        if len(keys) == 1:
            picked = pick.correlate(None).scalar_subquery()
            # Of a single row; such a sub-select is run once, too.
            same_key = keys[0] == (picked if single else func.any(func.array(picked)))
            return statement.where(*first, same_key, self._mark.is_ready)
        picked_cte = pick.cte("sa_jobqueue_picked").prefix_with("MATERIALIZED")
        # In the order of the keys: an attribute may be named otherwise than its column.
        pairs = zip(keys, picked_cte.c, strict=True)
        same = (key == column for key, column in pairs)
        return statement.where(*same, self._mark.is_ready)

    def _pick(self, limit: Any, *, from_place: bool) -> Select[Any]:
        """Lock the keys of the next rows."""
        ready, keys = self.ready, self.mapping.key_attributes
        if from_place or not self.spec.levels:
            return ready.locked(ready.select(*keys, from_place=from_place).limit(limit))
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
