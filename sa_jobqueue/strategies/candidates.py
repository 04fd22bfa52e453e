"""candidates: read keys without locks, lock them by key while checking again, and mark.

The plain read may use any criteria, walk any index, and run outside the transaction or on a
replica: it locks nothing. The locking read goes by primary key, and checks the status and all
criteria again, so what a lagging replica returns is only ever a proposal. For criteria that the
claim index does not serve this is the way on InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sqlalchemy import Executable
from sqlalchemy.orm import Session

from ..fence.token import Identity
from ..sessions.writer import Writer, writer_for
from .skip_locked import SkipLocked
from .spec import Request, Taken
from .strategy import Strategy, kept

log = logging.getLogger("sa_jobqueue.lost")

#: How many candidates are read for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4

#: The factor by which a claim draws more candidates each time others have locked too many.
GROWTH = 4


class ByCandidates(Strategy):
    """What looks at candidates before it locks them: this file, strict order, and serial keys."""

    @property
    def by_index(self) -> bool:
        """Whether the plain read is bound to the claim index, where the index serves.

        MySQL was seen to read and sort the whole backlog of a partitioned table.
        """
        return self.spec.partitioned

    def candidate_columns(self) -> Sequence[Any]:
        """List what the plain read selects; the primary key comes first."""
        return self.mapping.key_attributes

    @kept
    def look(self, *, elsewhere: bool = False) -> Any:
        """Read the next candidates, locked or not.

        Args:
            elsewhere: in another session, whose table may be a copy without indexes.
        """
        read = self.ready.select(*self.candidate_columns(), plain=True)
        if elsewhere:
            return read
        if self.by_index and self.spec.served and self.ready.claim_index_hint:
            return self.ready.by_claim_index(read)
        hint = self.database.order_hint
        unhinted = hint is None or self.spec.order_by or not self.mapping.table.primary_key
        return read if unhinted else read.with_hint(self.mapping.table, hint)

    def draw(self, reader: Writer, size: int, look: Any) -> list[Any]:
        """Read up to `size` candidates in claim order, level by level."""
        return self.ready.levels.collect(
            reader, size, lambda **parameters: list(reader.rows(look, parameters))
        )

    def lock(
        self, writer: Writer, request: Request, candidates: Sequence[Identity]
    ) -> tuple[list[Any], int]:
        """Lock candidates in claim order, as many at a time as are still wanted.

        With all of them in one read and a LIMIT, InnoDB would also lock the rows behind
        the limit wherever it sorts, and nobody else could claim those.

        Returns:
            What was locked, and how many candidates were lost to others. Candidates that
            were not tried are not lost.
        """
        locked: list[Any] = []
        tried = 0
        while len(locked) < request.limit and tried < len(candidates):
            wanted = candidates[tried : tried + request.limit - len(locked)]
            tried += len(wanted)
            locked += self.lock_keys(writer, request, wanted)
        return locked, tried - len(locked)


class Candidates(ByCandidates):
    """Read candidates without locks, then lock, check again and mark."""

    name = "candidates"
    candidates_elsewhere: ClassVar[bool] = True

    def take(self, writer: Writer, request: Request) -> Taken:
        source = request.candidates_from
        if source is None and writer.keeps_snapshot:
            # A plain read would see the queue as it was when the caller's
            # transaction began; a locking read sees it as it is.
            return SkipLocked(self.spec, self.database, indexed=self.indexed).take(writer, request)
        with writer.atomically():
            locked, candidates, lost = self._lock_next(writer, request, source)
            taken = self.mark(writer, request, locked)
        if candidates and lost == candidates:
            log.info("%s: all %d candidates were lost to others", self.mapping, lost)
        return replace(taken, candidates=candidates, lost=lost)

    def _lock_next(
        self, writer: Writer, request: Request, source: Session | None
    ) -> tuple[list[Any], int, int]:
        """Draw and lock until there are as many jobs as wanted, or no more candidates.

        An open transaction may hold more of the next rows than one draw has. The draws
        grow, and begin at the head of the queue each time.

        Returns:
            What was locked, how many candidates were drawn, how many of them were lost.
        """
        reader = writer if source is None else writer_for(source, self.mapping)
        look = self.look(elsewhere=source is not None)
        size, locked, lost = request.limit * OVERDRAW, list[Any](), 0
        known: set[Identity] = set()
        while True:
            drawn = [tuple(key) for key in self.draw(reader, size, look)]
            new = [key for key in drawn if key not in known]
            known.update(new)
            rest = replace(request, limit=request.limit - len(locked))
            more, lost_too = self.lock(writer, rest, new)
            locked += more
            lost += lost_too
            if len(locked) >= request.limit or len(drawn) < size:
                return locked, len(known), lost
            size *= GROWTH

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.levels.statements()
        return [*levels, self.look(), self.lock_by_keys(), self.mark_by_keys()]
