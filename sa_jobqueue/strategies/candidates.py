"""candidates: a plain read finds keys, a locking read by key takes what it gets.

The plain read may use any predicate, walk any index, run outside the
transaction or on a replica: it locks nothing. The locking read goes by primary
key and checks the status and the whole predicate again, so what a lagging
replica says is only ever a proposal. For predicates that the claim index does
not serve this is the way on InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from sqlalchemy import Executable, Select, select
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.orm import Session

from ..dialects import database_of
from ..sessions import Writer
from .base import LIMIT, Request, Taken, key_values
from .locking import LockingStrategy
from .skip_locked import SkipLocked

log = logging.getLogger("sa_jobqueue.lost")

#: How many candidates are drawn for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4


class Candidates(LockingStrategy):
    """Draw candidates without locks, then lock, check again and mark."""

    name = "candidates"

    def take(self, writer: Writer, request: Request) -> Taken:
        source = request.candidates_from
        with writer.atomically():
            if source is None and self.database.keeps_snapshot(writer.connection):
                # A plain read would see the queue as it was when the caller's
                # transaction began; a locking read sees it as it is.
                return self._skip_locked.take(writer, request)
            candidates = self._draw(writer, request, source)
            locked = self._lock(writer, request, candidates)
            taken = self.mark_locked(writer, request, locked)
        lost = _lost(candidates, self._keys(request, taken.jobs), request.limit)
        if candidates and lost == len(candidates):
            log.info("%s: all %d candidates were lost to others", self.mapping.entity, lost)
        return Taken(taken.jobs, candidates=len(candidates), lost=lost)

    def statements(self) -> list[Executable]:
        steps = [self.next_priority] if self.spec.steps else []
        return [*steps, self.draw, self.lock_candidates, self.mark]

    @cached_property
    def draw(self) -> Select[Any]:
        """The plain read of candidate keys."""
        return self.ready(*self.mapping.key_attributes)

    @cached_property
    def lock_candidates(self) -> Any:
        """The locking read by primary key, of entities."""
        return self._locking(rows=False).options(*self.loading)

    @cached_property
    def lock_candidate_rows(self) -> Any:
        """The locking read by primary key, of plain rows."""
        return self._locking(rows=True)

    def _locking(self, *, rows: bool) -> Select[Any]:
        return self.locked(
            select(*self.what(rows=rows))
            .where(self.key_is_in("claim_keys"), self.is_ready, *self.due, *self.spec.where)
            .order_by(*self.spec.order)
            .limit(LIMIT)
        )

    @cached_property
    def _skip_locked(self) -> SkipLocked:
        return SkipLocked(self.spec, self.database)

    def _draw(
        self, writer: Writer, request: Request, source: Session | None
    ) -> list[tuple[Any, ...]]:
        if source is None:
            reader = writer
        else:
            connection = source.connection(bind_arguments={"mapper": self.mapping.mapper})
            database = database_of(connection)
            autocommit = database.in_autocommit(connection)
            if not autocommit:
                database.begin(connection)
            reader = Writer(source, connection, database, autocommit)
        drawn = self.in_steps(
            reader,
            request.limit * OVERDRAW,
            lambda **parameters: list(reader.orm(self.draw, parameters).all()),
        )
        return [tuple(key) for key in drawn]

    def _lock(
        self, writer: Writer, request: Request, candidates: list[tuple[Any, ...]]
    ) -> list[Any]:
        if not candidates:
            return []
        statement = self.lock_candidate_rows if request.rows else self.lock_candidates
        parameters = {"claim_keys": key_values(candidates), "claim_limit": request.limit}
        return self.read(writer, request, statement, parameters)

    def _keys(self, request: Request, jobs: Any) -> list[tuple[Any, ...]]:
        if request.rows:
            places = self.mapping.key_places
            return [tuple(row[place] for place in places) for row in jobs]
        return [tuple(sa_inspect(job).identity) for job in jobs]


def _lost(candidates: list[Any], taken: list[Any], limit: int) -> int:
    """Count the candidates that others had first.

    Those behind the last one taken were not asked for, once the limit was reached.
    """
    if len(taken) < limit:
        return len(candidates) - len(taken)
    places = {key: place for place, key in enumerate(candidates)}
    return max(places[key] for key in taken) + 1 - len(taken)
