"""compare_and_set: one UPDATE .. RETURNING, where the database has one writer."""

from __future__ import annotations

from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Executable, Update, select, tuple_, update
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import Database
from ..model.keys import key_values
from ..model.transitions import OWNER
from ..sessions.writer import Writer
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

    @staticmethod
    def refusal(database: Database) -> str | None:
        if database.one_writer and database.update_returning:
            return None
        return "others write at the same time, and an unlocked sub-select may pick their rows"

    def take(self, writer: Writer, request: Request) -> Taken:
        if self.spec.levels or self._reads_back(writer):
            with writer.atomically():
                return self._take(writer, request)
        return self._take(writer, request)

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        if self._sorts_itself:
            return [*levels, self.claim_entities]
        return [*levels, self.pick, self.claim_picked, self._read_back.entities]

    def _take(self, writer: Writer, request: Request) -> Taken:
        if self._reads_back(writer):
            return self._mark.taken(request, self._take_and_read_back(writer, request))
        if request.rows:
            rows = self._claim(writer, request)
            if len(rows) > 1:
                rows.sort(key=itemgetter(*self.mapping.order_ordinals))
            return self._mark.taken(request, rows)
        claimed = self._claim(writer, request)
        entities = [entity for (entity,) in claimed]
        in_order = _sorted_by_attributes(entities, self.mapping.order_attributes)
        return self._mark.taken(request, in_order)

    def _claim(self, writer: Writer, request: Request) -> list[Any]:
        single = self._is_single(request)
        if request.rows:
            statement = self.claim_row if single else self.claim_rows
        else:
            statement = self.claim_entity if single else self.claim_entities

        def claim(**parameters: Any) -> list[Any]:
            parameters[OWNER] = request.owner
            if single:
                del parameters["sa_jobqueue_limit"]
            if request.rows:
                return list(writer.built(statement, parameters).all())
            return list(writer.fresh(statement, parameters).all())

        return self.ready.levels.collect(writer, request.limit, claim)

    @cached_property
    def claim_entities(self) -> Any:
        """The whole claim, of entities."""
        return self._entities(self._update(self._is_picked))

    @cached_property
    def claim_rows(self) -> Any:
        """The whole claim, of plain rows."""
        return self._rows(self._update(self._is_picked))

    # A scalar sub-select saves SQLite a temporary table of keys. Its value is that of its first
    # row; a LIMIT would add two parameters, its own and that of the OFFSET that SQLAlchemy writes.

    @cached_property
    def claim_entity(self) -> Any:
        """The whole claim, of a single entity."""
        return self._entities(self._update(self._is_first))

    @cached_property
    def claim_row(self) -> Any:
        """The whole claim, of a single plain row."""
        return self._rows(self._update(self._is_first))

    def _entities(self, claim: Update) -> Any:
        returning = claim.returning(*self.mapping.table.c)
        loading = loading_options(self.mapping)
        return select(self.mapping.entity).options(*loading).from_statement(returning)

    def _rows(self, claim: Update) -> Any:
        return claim.returning(*row_columns(self.mapping, during=None))

    def _update(self, criterion: ColumnElement[bool]) -> Update:
        return update(self.mapping.table).where(criterion).values(self._mark.values())

    @property
    def _is_picked(self) -> ColumnElement[bool]:
        keys = self.mapping.keys
        key: Any = keys[0] if len(keys) == 1 else tuple_(*keys)
        criterion: ColumnElement[bool] = key.in_(self.pick.correlate(None))
        return criterion

    @property
    def _is_first(self) -> ColumnElement[bool]:
        (key,) = self.mapping.keys
        first = self.pick.limit(None).correlate(None)
        criterion: ColumnElement[bool] = key == first.scalar_subquery()
        return criterion

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
