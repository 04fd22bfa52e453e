"""candidates: a plain read finds keys, a locking read by key takes what it gets.

The plain read may use any predicate, walk any index, run outside the
transaction or on a replica: it locks nothing. The locking read goes by primary
key and checks the status and the whole predicate again, so what a lagging
replica says is only ever a proposal. For predicates that the claim index does
not serve this is the way on InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from sqlalchemy import Executable, Select, select
from sqlalchemy.orm import Session

from ..model.keys import by_key, key_values
from ..sessions.writer import Writer, writer_for
from .base import OVERDRAW
from .locking import LockingStrategy
from .skip_locked import SkipLocked
from .spec import Request, Taken

log = logging.getLogger("sa_jobqueue.lost")


class Candidates(LockingStrategy):
    """Draw candidates without locks, then lock, check again and mark."""

    name = "candidates"

    def take(self, writer: Writer, request: Request) -> Taken:
        source = request.candidates_from
        if source is None and writer.keeps_snapshot:
            # A plain read would see the queue as it was when the caller's
            # transaction began; a locking read sees it as it is.
            return self._skip_locked.take(writer, request)
        with writer.atomically():
            candidates = self._draw(writer, request, source)
            locked, lost = self._lock(writer, request, candidates)
            taken = self.mark_locked(writer, request, locked)
        if candidates and lost == len(candidates):
            log.info("%s: all %d candidates were lost to others", self.mapping, lost)
        return replace(taken, candidates=len(candidates), lost=lost)

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        return [*steps, self.draw, self.lock_candidates, self.mark]

    @cached_property
    def draw(self) -> Any:
        """The plain read of candidate keys."""
        read = self.draw_elsewhere
        # Of a partitioned table MySQL was seen to read and sort the whole backlog.
        if self.spec.partitioned and self.spec.served and self.claim_index_hint:
            return self.by_claim_index(read)
        hint = self.database.order_hint
        unhinted = hint is None or self.spec.order_by or not self.mapping.table.primary_key
        return read if unhinted else read.with_hint(self.mapping.table, hint)

    @cached_property
    def draw_elsewhere(self) -> Any:
        """The same for another session, where the table may be a copy without indexes."""
        return self.ready(*self.mapping.key_attributes, plain=True)

    @cached_property
    def lock_candidates(self) -> Any:
        """The locking read by primary key, of entities."""
        return self.by_keys(*self.what(rows=False)).options(*self.loading)

    @cached_property
    def lock_candidate_rows(self) -> Any:
        """The locking read by primary key, of plain rows."""
        return self.by_keys(*self.what(rows=True))

    def by_keys(self, *what: Any) -> Select[Any]:
        """Lock the rows of some keys that are still claimable, passing over locked ones."""
        statement = (
            select(*what)
            .where(self.key_is_in("claim_keys"), self.is_ready, *self.due, *self.spec.where)
            .order_by(*self.spec.order)
        )
        return self.locked(by_key(statement, self.mapping.table, self.database))

    @cached_property
    def _skip_locked(self) -> SkipLocked:
        return SkipLocked(self.spec, self.database)

    def _draw(
        self, writer: Writer, request: Request, source: Session | None
    ) -> list[tuple[Any, ...]]:
        reader = writer if source is None else writer_for(source, self.mapping)
        draw = self.draw if source is None else self.draw_elsewhere
        drawn = self.in_steps(
            reader,
            request.limit * OVERDRAW,
            lambda **parameters: list(reader.rows(draw, parameters).all()),
        )
        return [tuple(key) for key in drawn]

    def _lock(
        self, writer: Writer, request: Request, candidates: list[tuple[Any, ...]]
    ) -> tuple[list[Any], int]:
        """Lock candidates in claim order, as many at a time as are still wanted.

        All at once with a LIMIT would lock those behind it as well, wherever
        InnoDB sorts; they would be lost to everybody else. Candidates that were
        not asked for are not lost.
        """
        statement = self.lock_candidate_rows if request.rows else self.lock_candidates
        locked: list[Any] = []
        asked = 0
        while len(locked) < request.limit and asked < len(candidates):
            wanted = candidates[asked : asked + request.limit - len(locked)]
            asked += len(wanted)
            locked += self.read(writer, request, statement, {"claim_keys": self.lockable(wanted)})
        return locked, asked - len(locked)

    def lockable(self, identities: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return keys for a locking read that leaves no lock on rows that fail its criteria.

        InnoDB looks a single key up in another way, and keeps the row locked
        until the transaction ends: its new owner could not finish it. NULL makes
        it two keys, and finds no row.
        """
        values = key_values(identities)
        if len(identities) == 1 and self.database.keeps_one_key:
            width = len(self.mapping.keys)
            return [values[0], None if width == 1 else (None,) * width]
        return values
