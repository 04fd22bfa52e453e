"""compare_and_set: one UPDATE .. RETURNING, where the database has one writer."""

from __future__ import annotations

from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import Executable, Update, select, tuple_, update
from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.sql.dml import ReturningUpdate

from ..dialects import Database
from ..model.keys import key_values
from ..model.plain_rows import row_columns
from ..sessions.writer import Writer
from .base import Strategy
from .spec import Request, Taken


class CompareAndSet(Strategy):
    """Pick and mark in one statement; nobody else writes meanwhile."""

    name = "compare_and_set"

    @staticmethod
    def refusal(database: Database) -> str | None:
        if database.one_writer and database.update_returning:
            return None
        return "others write at the same time, and an unlocked sub-select may pick their rows"

    def take(self, writer: Writer, request: Request) -> Taken:
        if self.spec.steps or self._reads_back(writer):
            with writer.atomically():
                return self._take(writer, request)
        return self._take(writer, request)

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        if self._sorts_itself:
            return [*steps, self.claim_entities]
        return [*steps, self.pick, self.claim_picked, self.read_entities]

    def _take(self, writer: Writer, request: Request) -> Taken:
        if self._reads_back(writer):
            return self._dated(request, self._take_and_read_back(writer, request))
        if request.rows:
            rows = self._claim(writer, request, self.claim_rows)
            return self._dated(request, _sorted(rows, self.mapping.order_ordinals))
        claimed = self._claim(writer, request, self.claim_entities)
        entities = [entity for (entity,) in claimed]
        return self._dated(request, _sorted_by_attributes(entities, self.mapping.order_attributes))

    def _claim(self, writer: Writer, request: Request, statement: Any) -> list[Any]:
        def claim(**parameters: Any) -> list[Any]:
            parameters["claim_owner"] = request.owner
            if request.rows:
                return list(writer.core(statement, parameters).all())
            return list(writer.orm(statement, parameters, populate_existing=True).all())

        return self.in_steps(writer, request.limit, claim)

    # RETURNING answers in no order. The mixins' own order is sorted here; any
    # other one, or a class with more than the columns of one table, is picked,
    # marked, and read back in order, under the write lock from the first read on.

    @cached_property
    def _sorts_itself(self) -> bool:
        return self.spec.own_order and self.mapping.plain and self.mapping.sorts_in_python

    def _reads_back(self, writer: Writer) -> bool:
        return writer.hooked or not self._sorts_itself

    def _take_and_read_back(self, writer: Writer, request: Request) -> list[Any]:
        writer.lock_writes(self.mapping.table)
        picked = self.in_steps(
            writer, request.limit, lambda **parameters: self._pick(writer, parameters)
        )
        if not picked:
            return []
        mark = {"claim_keys": key_values(picked), "claim_owner": request.owner}
        marked = [tuple(key) for key in writer.core(self.claim_picked, mark)]
        keys = {"claim_keys": key_values(marked)}
        if request.rows:
            return list(writer.rows(self.read_rows, keys).all())
        return list(writer.orm(self.read_entities, keys, populate_existing=True).scalars().all())

    def _pick(self, writer: Writer, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [tuple(key) for key in writer.rows(self.pick, parameters)]

    @cached_property
    def pick(self) -> Any:
        """Select the keys of the next rows."""
        return self.ready(*self.mapping.key_attributes)

    @cached_property
    def claim_picked(self) -> ReturningUpdate[Any]:
        """Mark picked rows, those that are still ready."""
        return (
            update(self.mapping.table)
            .where(self.key_is_in("claim_keys"), self.is_ready)
            .values(self.marking())
            .returning(*self.mapping.keys)
        )

    @cached_property
    def claim_entities(self) -> Any:
        """The whole claim, of entities."""
        statement = self._update().returning(*self.mapping.table.c)
        return select(self.mapping.entity).options(*self.loading).from_statement(statement)

    @cached_property
    def claim_rows(self) -> Any:
        """The whole claim, of plain rows."""
        return self._update().returning(*row_columns(self.mapping, during=None))

    @cached_property
    def read_entities(self) -> Any:
        """Read claimed entities in claim order."""
        return self._reading(self.mapping.entity).options(*self.loading)

    @cached_property
    def read_rows(self) -> Any:
        """Read claimed rows in claim order."""
        return self._reading(*row_columns(self.mapping, during=None, orm=True))

    def _reading(self, *what: Any) -> Any:
        return select(*what).where(self.key_is_in("claim_keys")).order_by(*self.spec.order)

    def _update(self) -> Update:
        picked = self.pick.correlate(None)
        keys = self.mapping.keys
        key: Any = keys[0] if len(keys) == 1 else tuple_(*keys)
        return update(self.mapping.table).where(key.in_(picked)).values(self.marking())


def _sorted(rows: list[Any], places: tuple[int, ...]) -> list[Any]:
    return sorted(rows, key=itemgetter(*places))


def _sorted_by_attributes(entities: list[Any], keys: tuple[str, ...]) -> list[Any]:
    if len(entities) < 2:
        return entities

    in_order = itemgetter(*keys)
    return sorted(entities, key=lambda entity: in_order(instance_dict(entity)))
