"""compare_and_set: one UPDATE .. RETURNING, where the database has one writer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import Executable, select, tuple_, update
from sqlalchemy.orm.attributes import instance_dict

from ..databases import Database
from ..model.transitions import OWNER
from ..sessions.writer import Writer
from .place import Placed, Start
from .spec import Request, Taken
from .strategy import kept, loading_options, row_columns


class CompareAndSet(Placed):
    """Pick and mark in one statement; nobody else writes meanwhile."""

    name = "compare_and_set"

    @staticmethod
    def refusal(database: Database) -> str | None:
        if database.one_writer and database.update_returning:
            return None
        return "others write at the same time, and an unlocked sub-select may pick their rows"

    def take_from(self, writer: Writer, request: Request, start: Start) -> Taken:
        if writer.hooked or not self._sorts_itself:
            return self.lock_and_mark(writer, request, start)
        statement = self.claim_next(request.rows, bool(start))

        def claim(**parameters: Any) -> Sequence[Any]:
            parameters[OWNER] = request.owner
            return self._sorted(request.rows, self.read(writer, request, statement, parameters))

        with writer.atomically() if self.spec.levels else nullcontext():
            jobs = self.ready.collect(writer, request.limit, claim, start)
        return Taken(jobs, self.dates(request, jobs))

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.level_statements
        if self._sorts_itself:
            return [*levels, self.claim_next()]
        return [*levels, self.lock_next(), self.mark_by_keys()]

    @cached_property
    def _sorts_itself(self) -> bool:
        """Whether the claim is sorted in Python: RETURNING answers in no order.

        Any other order, and a class of more columns than those of one table, takes two statements,
        behind the write lock: read the rows in order, and mark them.
        """
        return self.spec.own_order and self.mapping.plain and self.mapping.sorts_in_python

    def _sorted(self, rows: bool, jobs: Sequence[Any]) -> Sequence[Any]:
        """Sort what RETURNING answers in no order, by the mixins' own order."""
        if len(jobs) < 2:
            return jobs
        if rows:
            return sorted(jobs, key=itemgetter(*self.mapping.order_ordinals))
        in_order = itemgetter(*self.mapping.order_attributes)
        return sorted(jobs, key=lambda entity: in_order(instance_dict(entity)))

    @kept
    def claim_next(self, rows: bool = False, from_place: bool = False) -> Any:
        """Build the whole claim, of plain rows or of entities.

        Args:
            from_place: it begins at a place in the claim order.
        """
        mapping, keys = self.mapping, self.mapping.keys
        pick = self.ready.select(*mapping.key_attributes, from_place=from_place).correlate(None)
        picked = (keys[0] if len(keys) == 1 else tuple_(*keys)).in_(pick)
        marked = update(mapping.table).where(picked).values(self.mark_values())
        if rows:
            return marked.returning(*row_columns(mapping))
        claim = select(mapping.entity).options(*loading_options(mapping))
        return claim.from_statement(marked.returning(*mapping.table.c))
