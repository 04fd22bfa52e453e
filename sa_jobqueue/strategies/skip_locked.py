"""skip_locked: lock ready rows in claim order, passing over locked ones, and mark them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Executable, Select, func, select, true, update

from ..fence.carried import CarriedFinish
from ..model.keys import repeated_key
from ..model.transitions import OWNER
from ..sessions.writer import Writer
from .place import Placed, Start
from .ready_rows import LIMIT, adapted
from .spec import Request, Taken
from .strategy import kept, loading_options, row_columns


class SkipLocked(Placed):
    """One statement where a locking sub-select can be fenced, else two."""

    name = "skip_locked"

    def take_from(self, writer: Writer, request: Request, start: Start) -> Taken:
        if writer.hooked or not self.in_one:
            return self.lock_and_mark(writer, request, start)
        parameters = {"sa_jobqueue_limit": request.limit, OWNER: request.owner, **start}
        finish = None
        if request.finish is not None:
            finish = request.finish.finish
            parameters.update(request.finish.parameters)
        statement = self.claim_next(request.rows, bool(start), finish)
        jobs = self.read(writer, request, statement, parameters)
        if len(jobs) > request.limit:
            raise repeated_key(self.mapping)
        # One statement has marked them all, at one time.
        return Taken(jobs, self.dates(request, jobs[:1]) * len(jobs))

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

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        if self.in_one:
            return [self.claim_next()]
        lock = self.lock_next(first=not from_head)
        return [*self.ready.level_statements, lock, self.mark_by_keys()]

    @cached_property
    def carries_finishes(self) -> bool:  # type: ignore[override]  # an attribute elsewhere
        """Whether one statement can finish jobs, too.

        The claim does not see what the finish writes: the criteria must not look at other rows.
        """
        return self.in_one and self.spec.looks_at_own_row

    # -- in one statement -----------------------------------------------

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
    # 1.43 ms without). A form for a single job, without array and order, saved 3 % of the time
    # of a claim and its finish.

    @kept
    def claim_next(
        self,
        rows: bool = False,
        from_place: bool = False,
        finish: CarriedFinish | None = None,
    ) -> Any:
        """Build the whole claim, of plain rows or of entities.

        Args:
            from_place: it begins at a place in the claim order.
            finish: what else the statement does.
        """
        mapping = self.mapping
        columns = row_columns(mapping) if rows else mapping.table.c
        first = () if finish is None else (finish.is_complete,)
        marked = self._update(self._pick(from_place=from_place), *first)
        claimed = marked.returning(*mapping.table.c).cte("sa_jobqueue_claimed")
        order: list[Any] = [adapted(element, claimed) for element in self.spec.order]
        claim = select(*(adapted(column, claimed) for column in columns)).order_by(*order)
        if rows:
            return claim
        return select(mapping.entity).options(*loading_options(mapping)).from_statement(claim)

    def _update(self, pick: Select[Any], *first: ColumnElement[bool]) -> Any:
        """Mark the rows that were picked, if the `first` criteria hold."""
        keys, statement = self.mapping.keys, update(self.mapping.table).values(self.mark_values())
        if len(keys) == 1:
            picked = func.any(func.array(pick.correlate(None).scalar_subquery()))
            return statement.where(*first, keys[0] == picked, self.is_unmarked)
        picked_cte = pick.cte("sa_jobqueue_picked").prefix_with("MATERIALIZED")
        # In the order of the keys: an attribute may be named otherwise than its column.
        pairs = zip(keys, picked_cte.c, strict=True)
        same = (key == column for key, column in pairs)
        return statement.where(*same, self.is_unmarked)

    def _pick(self, *, from_place: bool) -> Select[Any]:
        """Lock the keys of the next rows."""
        ready, keys = self.ready, self.mapping.key_attributes
        if from_place or not self.spec.levels:
            return ready.locked(ready.select(*keys, from_place=from_place))
        # Priority by priority, or round by round, in one statement: a loose scan over the
        # priorities that have rows, and the due rows of each in turn, until there are
        # enough. LATERAL can only be a nested loop. So the priorities come in order, and
        # the rows of the next priority are locked only when they are needed.
        (role,) = self.spec.levels
        levels = self._levels_with_rows(role)
        of_level = self.mapping.attribute(role) == levels.c[role]
        due: Any = select(*keys).where(ready.found_by, of_level, *ready.due, *self.spec.where)
        due = due.order_by(*ready.walked).limit(LIMIT).correlate(levels)
        rows = ready.locked(due, of=False).lateral("sa_jobqueue_due")
        return select(*rows.c).select_from(levels.join(rows, true())).limit(LIMIT)

    def _levels_with_rows(self, role: str) -> Any:
        """Select the priorities, or rounds, that have ready rows: the loose scan."""
        ready = self.ready
        waiting = self.mapping.table.alias("sa_jobqueue_waiting")
        first = ready.first_level_in(waiting).scalar_subquery()
        name = "sa_jobqueue_priorities" if role == "priority" else "sa_jobqueue_rounds"
        found = select(first.label(role)).cte(name, recursive=True)
        (behind,) = ready.behind_level(waiting, [found.c[role]])
        following = ready.first_level_in(waiting).where(*behind)
        return found.union_all(
            select(following.scalar_subquery()).where(found.c[role].is_not(None))
        )
