"""compare_and_set: one UPDATE .. RETURNING, where the database has one writer."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import Executable, select, tuple_, update
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import Database
from ..model.keys import key_values
from ..model.transitions import OWNER
from ..sessions.writer import Writer
from .place import Place, Start, with_rest
from .reads import ReadBack, loading_options, row_columns
from .spec import ClaimSpec, Request, Taken
from .strategy import Mark, Strategy


class CompareAndSet(Strategy):
    """Pick and mark in one statement; nobody else writes meanwhile."""

    name = "compare_and_set"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._mark = Mark(spec, database)
        self._read_back = ReadBack(self.mapping, self._select_claimed)
        self._place = Place.of(spec) if self._sorts_itself else None
        self._built: dict[Any, Any] = {}  # the statements of whole claims, by their arguments

    @staticmethod
    def refusal(database: Database) -> str | None:
        if database.one_writer and database.update_returning:
            return None
        return "others write at the same time, and an unlocked sub-select may pick their rows"

    def take(self, writer: Writer, request: Request) -> Taken:
        if self._place is None:
            return self._take(writer, request, {})
        taken = self._place.take(writer, request, self._take)
        return with_rest(writer, request, taken, self._take)

    def _take(self, writer: Writer, request: Request, start: Start) -> Taken:
        several = (self.spec.levels and not start) or self._reads_back(writer)
        with writer.atomically() if several else nullcontext():
            return self._mark.taken(request, self._claimed(writer, request, start))

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        if self._sorts_itself:
            return [*levels, self._statement()]
        return [*levels, self.pick, self.claim_picked, self._read_back.entities]

    def _claimed(self, writer: Writer, request: Request, start: Start) -> list[Any]:
        """Claim, and return the jobs in claim order."""
        if self._reads_back(writer):
            return self._take_and_read_back(writer, request)
        jobs = self._claim(writer, request, start)
        if request.rows:
            if len(jobs) > 1:
                jobs.sort(key=itemgetter(*self.mapping.order_ordinals))
            return jobs
        return _sorted_by_attributes([entity for (entity,) in jobs], self.mapping.order_attributes)

    def _claim(self, writer: Writer, request: Request, start: Start) -> list[Any]:
        single = self._is_single(request)
        form = (request.rows, single, bool(start))
        statement = self._built.get(form)
        if statement is None:
            statement = self._built.setdefault(form, self._statement(*form))

        def claim(**parameters: Any) -> list[Any]:
            parameters[OWNER] = request.owner
            if single:
                del parameters["sa_jobqueue_limit"]
            run = writer.built if request.rows else writer.fresh
            return list(run(statement, parameters).all())

        if start:
            return claim(sa_jobqueue_limit=request.limit, **start)
        return self.ready.levels.collect(writer, request.limit, claim)

    def _statement(self, rows: bool = False, single: bool = False, from_place: bool = False) -> Any:
        """Build the whole claim, of plain rows or of entities.

        Args:
            from_place: it begins at a place in the claim order.
        """
        mapping, keys = self.mapping, self.mapping.keys
        pick = self.ready.select(*mapping.key_attributes, from_place=from_place).correlate(None)
        if single:
            # A scalar sub-select saves SQLite a temporary table of keys. Its value is that of its
            # first row; a LIMIT would add two parameters, its own and that of the OFFSET that
            # SQLAlchemy writes.
            picked = keys[0] == pick.limit(None).scalar_subquery()
        else:
            picked = (keys[0] if len(keys) == 1 else tuple_(*keys)).in_(pick)
        marked = update(mapping.table).where(picked).values(self._mark.values())
        if rows:
            return marked.returning(*row_columns(mapping, during=None))
        claim = select(mapping.entity).options(*loading_options(mapping))
        return claim.from_statement(marked.returning(*mapping.table.c))

    # -- pick, mark, read back ------------------------------------------

    # RETURNING answers in no order. The mixins' own order is sorted here in Python. Any
    # other order, and a class of more columns than those of one table, takes three
    # statements: pick, mark, and read back in order. The first of them is preceded by
    # the write lock, so nobody writes in between.

    @cached_property
    def _sorts_itself(self) -> bool:
        return self.spec.own_order and self.mapping.plain and self.mapping.sorts_in_python

    def _reads_back(self, writer: Writer) -> bool:
        return writer.hooked or not self._sorts_itself

    def _take_and_read_back(self, writer: Writer, request: Request) -> list[Any]:
        writer.lock_writes(self.mapping.table)
        picked = self.ready.levels.collect(
            writer,
            request.limit,
            lambda **parameters: [tuple(key) for key in writer.rows(self.pick, parameters)],
        )
        if not picked:
            return []
        mark = {"sa_jobqueue_keys": key_values(picked), "sa_jobqueue_owner": request.owner}
        marked = [tuple(key) for key in writer.core(self.claim_picked, mark)]
        return self._read_back.run(writer, request, {"sa_jobqueue_keys": key_values(marked)})

    @cached_property
    def pick(self) -> Any:
        """Select the keys of the next rows."""
        return self.ready.select(*self.mapping.key_attributes)

    @cached_property
    def claim_picked(self) -> Executable:
        """Mark the picked rows that are still ready."""
        return (
            update(self.mapping.table)
            .where(self.ready.key_is_in("sa_jobqueue_keys"), self.ready.has_status)
            .values(self._mark.values())
            .returning(*self.mapping.keys)
        )

    def _select_claimed(self, *columns: Any) -> Any:
        """Select claimed jobs in claim order."""
        by_key = select(*columns).where(self.ready.key_is_in("sa_jobqueue_keys"))
        return by_key.order_by(*self.spec.order)


def _sorted_by_attributes(entities: list[Any], keys: tuple[str, ...]) -> list[Any]:
    if len(entities) < 2:
        return entities

    in_order = itemgetter(*keys)
    return sorted(entities, key=lambda entity: in_order(instance_dict(entity)))
