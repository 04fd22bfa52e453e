"""candidates: a plain read finds keys, a locking read by key takes what it gets.

``candidate_reads.py`` has the two reads. For criteria that the claim index does not
serve this is the way on InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import Executable
from sqlalchemy.orm import Session

from ..dialects import Database
from ..sessions.writer import Writer, writer_for
from .parts.candidate_reads import OVERDRAW, CandidateReads
from .parts.mark import Mark
from .parts.ready_lock import refusal_without_skip_locked
from .skip_locked import SkipLocked
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy

log = logging.getLogger("sa_jobqueue.lost")

#: The factor by which a claim draws more candidates each time others have locked too many.
GROWTH = 4


class Candidates(Strategy):
    """Read candidates without locks, then lock, check again and mark."""

    name = "candidates"
    candidates_elsewhere: ClassVar[bool] = True

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        # MySQL was seen to read and sort the whole backlog of a partitioned table.
        columns, by_index = self.mapping.key_attributes, spec.partitioned
        self.reads = CandidateReads(self.ready, *columns, by_index=by_index)
        self.mark = Mark(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        source = request.candidates_from
        if source is None and writer.keeps_snapshot:
            # A plain read would see the queue as it was when the caller's
            # transaction began; a locking read sees it as it is.
            return self._skip_locked.take(writer, request)
        with writer.atomically():
            locked, candidates, lost = self._lock(writer, request, source)
            taken = self.mark.write(writer, request, locked)
        if candidates and lost == candidates:
            log.info("%s: all %d candidates were lost to others", self.mapping, lost)
        return replace(taken, candidates=candidates, lost=lost)

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        return [*levels, self.reads.plain, self.reads.locking.entities, self.mark.by_key]

    @cached_property
    def _skip_locked(self) -> SkipLocked:
        return SkipLocked(self.spec, self.database)

    def _lock(
        self, writer: Writer, request: Request, source: Session | None
    ) -> tuple[list[Any], int, int]:
        """Draw and lock until there are as many jobs as wanted, or no more candidates.

        An open transaction may hold more of the next rows than one draw has. The draws
        grow, and begin at the head of the queue each time.

        Returns:
            What was locked, how many candidates were drawn, how many of them were lost.
        """
        size = request.limit * OVERDRAW
        drawn = self._draw(writer, source, size)
        locked, lost = self.reads.lock(writer, request, drawn)
        known = set(drawn)
        while len(locked) < request.limit and len(drawn) >= size:
            size *= GROWTH
            drawn = self._draw(writer, source, size)
            new = [key for key in drawn if key not in known]
            known.update(new)
            rest = replace(request, limit=request.limit - len(locked))
            more, lost_too = self.reads.lock(writer, rest, new)
            locked += more
            lost += lost_too
        return locked, len(known), lost

    def _draw(self, writer: Writer, source: Session | None, size: int) -> list[tuple[Any, ...]]:
        reader = writer if source is None else writer_for(source, self.mapping)
        read = self.reads.plain if source is None else self.reads.plain_elsewhere
        drawn = self.ready.levels.collect(
            reader,
            size,
            lambda **parameters: list(reader.rows(read, parameters).all()),
        )
        return [tuple(key) for key in drawn]
