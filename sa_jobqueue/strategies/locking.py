"""Claims that lock rows first: by a locking read, marked in a second statement.

The part that skip_locked, held and candidates share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import Database
from ..dialects.clock import as_utc
from ..model.indexes import claim_index
from ..model.keys import key_batches, key_values, keys_of
from ..sessions.show import refresh, show
from ..sessions.writer import Writer
from .base import Strategy
from .spec import Request, Taken

log = logging.getLogger("sa_jobqueue.claim")


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

    def _lock_ready(self, *, rows: bool, waiting: bool = False) -> Select[Any]:
        read = self.locked(self.ready(*self.what(rows=rows)), waiting=waiting)
        return self.by_claim_index(read, forced=not waiting)

    def by_claim_index(self, statement: Select[Any], *, forced: bool = False) -> Select[Any]:
        """Bind a SELECT in claim order to the claim index, where an optimizer may stray.

        Args:
            forced: where there are no hints, in words that are an error without the
                index, which :meth:`lock` answers.
        """
        index = claim_index(self.mapping)
        if index is None or self.spec.order_by or self._without_index:
            return statement
        if self.claim_index_hint:
            return statement.prefix_with(self.claim_index_hint)
        words = self.database.forced_index(index) if forced else None
        return statement if words is None else statement.with_hint(self.mapping.table, words)

    @cached_property
    def claim_index_hint(self) -> str | None:
        """The comment that binds a SELECT to the claim index, void where there is none."""
        index = claim_index(self.mapping)
        return None if index is None else self.database.index_hint(index)

    def lock(self, writer: Writer, request: Request) -> list[Any]:
        """Lock ready rows in claim order, in steps where the queue has priorities."""
        return self.in_steps(
            writer,
            request.limit,
            lambda **parameters: self._lock_some(writer, request, parameters),
        )

    def _lock_some(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        statement = self.lock_rows if request.rows else self.lock_entities
        try:
            return self.read(writer, request, statement, parameters)
        except DBAPIError as error:
            missing = error.orig is not None and self.database.is_missing_index(error.orig)
            if not missing or self._without_index:
                raise
        log.warning("%s has no claim index; claims may lock more than they take", self.mapping)
        self._forget_index()
        return self._lock_some(writer, request, parameters)

    #: The table has no claim index: a claim that was bound to it has said so.
    _without_index = False

    def _forget_index(self) -> None:
        self._without_index = True
        for bound in ("lock_rows", "lock_entities"):
            vars(self).pop(bound, None)

    def read(
        self, writer: Writer, request: Request, statement: Any, parameters: dict[str, Any]
    ) -> list[Any]:
        """Run a locking read; populate what the session had loaded before."""
        if request.rows:
            owner = {"claim_owner": request.owner} if self.marks else {}
            return list(writer.rows(statement, {**parameters, **owner}).all())
        return list(writer.orm(statement, parameters, populate_existing=True).all())

    def mark_locked(self, writer: Writer, request: Request, locked: Sequence[Any]) -> Taken:
        """Write status and owner to locked rows, and show it in the entities.

        Each row gets the time of the read that locked it; a claim that goes
        priority by priority makes several.
        """
        if request.rows:
            place = self.mapping.owner_date_ordinal
            dates = [row[place] for row in locked]
            jobs: Sequence[Any] = locked
        else:
            dates = [as_utc(date) for _, date in locked]
            jobs = [entity for entity, _ in locked]
        identities = keys_of(self.mapping, jobs, rows=request.rows)
        for date in dict.fromkeys(dates):
            of_date = [key for key, its in zip(identities, dates, strict=True) if its == date]
            self._mark(writer, request, of_date, date)
        if not request.rows:
            self._show(writer, request, jobs, dates)
        return Taken(jobs, dates)

    def _mark(self, writer: Writer, request: Request, identities: Sequence[Any], date: Any) -> None:
        for batch in key_batches(identities):
            parameters = {
                "claim_keys": key_values(batch),
                "claim_owner": request.owner,
                "claim_owner_date": date,
            }
            writer.core(self.mark, parameters)

    def _show(
        self, writer: Writer, request: Request, entities: Sequence[Any], dates: Sequence[datetime]
    ) -> None:
        pairs = zip(entities, dates, strict=True)
        show(writer.session, [(job, self._shown(job, request, date)) for job, date in pairs])
        refresh(writer, self.mapping, entities, self.mapping.onupdate_keys)

    def _shown(self, entity: Any, request: Request, date: datetime) -> dict[str, Any]:
        attributes = self.mapping.attributes
        shown = {
            attributes["status"]: self.spec.during,
            attributes["owner"]: request.owner,
            attributes["owner_date"]: date,
        }
        if "attempts" in attributes:
            attempts = instance_dict(entity).get(attributes["attempts"])
            if attempts is not None:
                shown[attributes["attempts"]] = attempts + 1
        return shown
