"""Claims that lock rows first: by a locking read, marked in a second statement.

The part that skip_locked, held and candidates share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import Select
from sqlalchemy import inspect as sa_inspect

from ..clock import as_utc
from ..dialects import Database
from ..indexes import claim_index
from ..keys import key_values
from ..sessions import Writer, show
from .base import Strategy
from .spec import Request, Taken


class LockingStrategy(Strategy):
    """A strategy whose claim begins with SELECT .. FOR UPDATE SKIP LOCKED."""

    @staticmethod
    def refusal(database: Database) -> str | None:
        if database.skip_locked:
            return None
        return "it has no SELECT .. FOR UPDATE SKIP LOCKED"

    @cached_property
    def lock_entities(self) -> Any:
        """The locking read, of entities with the time of the claim."""
        return self._lock_ready(rows=False).options(*self.loading)

    @cached_property
    def lock_rows(self) -> Any:
        """The locking read, of plain rows as they will be once marked."""
        return self._lock_ready(rows=True)

    def _lock_ready(self, *, rows: bool) -> Select[Any]:
        statement = self.locked(self.ready(*self.what(rows=rows)))
        index = claim_index(self.mapping)
        hint = self.database.index_hint(index) if index is not None else None
        if hint is None or self.spec.order_by:
            return statement
        return statement.prefix_with(hint)

    def lock(self, writer: Writer, request: Request) -> list[Any]:
        """Lock ready rows in claim order, in steps where the queue has priorities."""
        statement = self.lock_rows if request.rows else self.lock_entities
        return self.in_steps(
            writer,
            request.limit,
            lambda **parameters: self.read(writer, request, statement, parameters),
        )

    def read(
        self, writer: Writer, request: Request, statement: Any, parameters: dict[str, Any]
    ) -> list[Any]:
        """Run a locking read; populate what the session had loaded before."""
        if request.rows and self.marks:
            parameters = {**parameters, "claim_owner": request.owner}
        return list(writer.orm(statement, parameters, populate_existing=True).all())

    def mark_locked(self, writer: Writer, request: Request, locked: Sequence[Any]) -> Taken:
        """Write status and owner to locked rows, and show it in the entities."""
        if not locked:
            return Taken([])
        if request.rows:
            return self._mark_rows(writer, request, locked)
        entities = [entity for entity, _ in locked]
        date = as_utc(locked[-1].claim_date)
        identities = [tuple(sa_inspect(entity).identity) for entity in entities]
        self._mark(writer, request, identities, date)
        for entity in entities:
            show(writer.session, entity, self._shown(entity, request, date))
        self._expire_onupdate(writer, entities)
        return Taken(entities)

    def _mark_rows(self, writer: Writer, request: Request, locked: Sequence[Any]) -> Taken:
        places = self.mapping.key_places
        date = locked[-1][self.mapping.owner_date_place]
        self._mark(writer, request, [tuple(row[i] for i in places) for row in locked], date)
        return Taken(locked)

    def _mark(self, writer: Writer, request: Request, identities: Sequence[Any], date: Any) -> None:
        parameters = {
            "claim_keys": key_values(identities),
            "claim_owner": request.owner,
            "claim_owner_date": date,
        }
        writer.core(self.mark, parameters)

    def _shown(self, entity: Any, request: Request, date: Any) -> dict[str, Any]:
        attributes = self.mapping.attributes
        shown = {
            attributes["status"]: self.spec.during,
            attributes["owner"]: request.owner,
            attributes["owner_date"]: date,
        }
        attempts = sa_inspect(entity).dict.get(attributes.get("attempts", ""))
        if attempts is not None:
            shown[attributes["attempts"]] = attempts + 1
        return shown

    def _expire_onupdate(self, writer: Writer, entities: Sequence[Any]) -> None:
        keys = self.mapping.onupdate_keys
        for entity in entities if keys else ():
            writer.session.expire(entity, keys)
