"""skip_locked: lock ready rows, passing over locked ones, and mark them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sqlalchemy import Executable, Select, and_, func, select, true, update
from sqlalchemy.sql.util import ClauseAdapter

from ..model.plain_rows import row_columns
from ..sessions.writer import Writer
from .base import LIMIT
from .locking import LockingStrategy
from .spec import Request, Taken


class SkipLocked(LockingStrategy):
    """One statement where a locking sub-select can be fenced, else two."""

    name = "skip_locked"

    def take(self, writer: Writer, request: Request) -> Taken:
        if self.in_one and not writer.hooked:
            return self._take_in_one(writer, request)
        with writer.atomically():
            return self.mark_locked(writer, request, self.lock(writer, request))

    def statements(self) -> list[Executable]:
        if self.in_one:
            return [self.claim_entities]
        steps = [self.first_step] if self.spec.steps else []
        return [*steps, self.lock_entities, self.mark]

    @cached_property
    def in_one(self) -> bool:
        """Whether one statement claims: it must be fenced, and see all columns.

        The criteria that do_orm_execute hooks add to a SELECT would not reach
        the inside of an UPDATE: sessions that have such hooks lock first. And many
        partitions joined to keys of several columns are read whole: of 200,000
        rows in 64 partitions 100 were claimed in 40 ms so, in 18 by two statements.
        The loose scan below goes over one column, rounds or priorities.
        """
        joined = self.spec.partitioned and len(self.mapping.keys) > 1
        stepped = len(self.spec.steps) > 1
        return self.database.lock_once and self.mapping.plain and not joined and not stepped

    def _take_in_one(self, writer: Writer, request: Request) -> Taken:
        parameters = {"claim_owner": request.owner, "claim_limit": request.limit}
        if request.rows:
            return self._dated(request, writer.core(self.claim_rows, parameters).all())
        claimed = writer.orm(self.claim_entities, parameters, populate_existing=True)
        return self._dated(request, claimed.scalars().all())

    # The hardest query. UPDATE .. WHERE id IN (SELECT .. LIMIT n FOR UPDATE SKIP
    # LOCKED) may be planned as a nested loop that runs the sub-select again and
    # again, each time for n other rows: it claims more than n. An ARRAY is made
    # once, whatever the plan. It is 7 to 11 % faster than joining a materialized
    # CTE, which stays for keys of several columns (rows have no array; ctid is
    # not unique over the partitions of a table). RETURNING answers in the order
    # of the update, hence the outer SELECT; it costs nothing that was measurable
    # at 10 and 100 rows (0.36 and 1.46 ms against 0.39 and 1.43 without it).

    @cached_property
    def claim_entities(self) -> Any:
        """The whole claim, of entities."""
        return (
            select(self.mapping.entity)
            .options(*self.loading)
            .from_statement(self._claim(self.mapping.table.c))
        )

    @cached_property
    def claim_rows(self) -> Any:
        """The whole claim, of plain rows."""
        return self._claim(row_columns(self.mapping, during=None))

    def _claim(self, columns: Any) -> Any:
        claimed = self._update().returning(*self.mapping.table.c).cte("claimed")
        adapter = ClauseAdapter(claimed)
        order: list[Any] = [adapter.traverse(_clause(element)) for element in self.spec.order]
        adapted: list[Any] = [adapter.traverse(column) for column in columns]
        return select(*adapted).order_by(*order)

    def _update(self) -> Any:
        table, keys = self.mapping.table, self.mapping.keys
        statement = update(table).values(self.marking())
        if len(keys) == 1:
            picked = self._pick().correlate(None).scalar_subquery()
            return statement.where(keys[0] == func.any(func.array(picked)))
        picked_cte = self._pick().cte("picked").prefix_with("MATERIALIZED")
        return statement.where(and_(*(key == picked_cte.c[key.key] for key in keys)))

    def _pick(self) -> Select[Any]:
        """Lock the keys of the next rows."""
        keys = self.mapping.key_attributes
        if not self.spec.steps:
            return self.locked(self.ready(*keys))
        # Priority by priority, in one statement: a loose scan over the priorities
        # that are there, and the due rows of each in turn, until there are enough.
        # LATERAL can only be a nested loop, so the priorities come in order and
        # the rows of the next one are locked only when they are needed. Likewise
        # round by round.
        (role,) = self.spec.steps
        steps = self._steps_there(role)
        due: Any = (
            select(*keys)
            .where(
                self.is_ready,
                self.mapping.attribute(role) == steps.c[role],
                *self.due,
                *self.spec.where,
            )
            .order_by(*self.order_in_step)
            .limit(LIMIT)
            .correlate(steps)
        )
        rows = self.locked(due, of=False).lateral("due")
        return select(*rows.c).select_from(steps.join(rows, true())).limit(LIMIT)

    def _steps_there(self, role: str) -> Any:
        waiting = self.mapping.table.alias("waiting")
        first = self.first_in(waiting).scalar_subquery()
        name = "priorities" if role == "priority" else "rounds"
        found = select(first.label(role)).cte(name, recursive=True)
        (behind,) = self.behind(waiting, [found.c[role]])
        following = self.first_in(waiting).where(*behind)
        return found.union_all(
            select(following.scalar_subquery()).where(found.c[role].is_not(None))
        )


def _clause(element: Any) -> Any:
    """Return the SQL expression of a mapped attribute, anything else as it is."""
    return element.__clause_element__() if hasattr(element, "__clause_element__") else element
