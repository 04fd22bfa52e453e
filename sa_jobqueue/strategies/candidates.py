"""candidates: read keys without locks, lock them by key while checking again, and mark.

The plain read may use any criteria and walk any index: it locks nothing. The locking read goes by
primary key, and checks the status and all criteria again. For criteria that the claim index does
not serve this is the way on InnoDB, which locks every row that it walks over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sqlalchemy import Executable

from ..fence.token import Identity
from ..sessions.writer import Writer
from .spec import Request, Taken
from .strategy import Locked, Strategy, kept

log = logging.getLogger("sa_jobqueue.lost")

#: How many candidates are read for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4

#: The factor by which a claim draws more candidates each time it got too few jobs of them.
GROWTH = 8


class ByCandidates(Strategy):
    """What looks at candidates before it locks them: this file, strict order, and serial keys."""

    #: Whether the plain read is bound to the claim index, where the index serves. It is, too, where
    #: the table is partitioned: there MySQL was seen to read and sort the whole backlog.
    by_index: ClassVar[bool] = False

    def candidate_columns(self) -> Sequence[Any]:
        """List what the plain read selects; the primary key comes first."""
        return self.mapping.key_attributes

    @kept
    def look(self, *, from_place: bool = False) -> Any:
        """Read the next candidates, locked or not.

        Args:
            from_place: begin at a place in the claim order.
        """
        read = self.ready.select(*self.candidate_columns(), plain=True, from_place=from_place)
        by_index = self.by_index or self.spec.partitioned
        if by_index and self.spec.served and self.ready.claim_index_hint:
            return self.ready.by_claim_index(read)
        hint = self.database.order_hint
        unhinted = hint is None or self.spec.order_by or not self.mapping.table.primary_key
        return read if unhinted else read.with_hint(self.mapping.table, hint)

    def draw(
        self,
        reader: Writer,
        size: int,
        look: Any,
        start: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> list[Any]:
        """Read up to `size` candidates in claim order, level by level.

        Args:
            start: the parameters of a place to begin at, in one level.
            given: the values of further parameters.
        """

        def read(**parameters: Any) -> list[Any]:
            return list(reader.rows(look, {**given, **parameters}))

        return self.ready.collect(reader, size, read, start)

    def draws(
        self, size: int, draw: Callable[[int], list[Any]]
    ) -> Iterator[tuple[list[Any], bool]]:
        """Yield the next candidates in growing draws, and whether there may be more.

        Each draw begins at the head of the queue, and candidates that were drawn before are left
        out. An open transaction may hold more of the next rows than one draw has.
        """
        width, known, more = len(self.mapping.keys), set[Identity](), True
        while more:
            drawn = draw(size)
            new = [row for row in drawn if tuple(row[:width]) not in known]
            known.update(tuple(row[:width]) for row in new)
            more = len(drawn) >= size
            yield new, more
            size *= GROWTH

    def lock_candidates(
        self, writer: Writer, request: Request, candidates: Sequence[Identity]
    ) -> tuple[list[Locked], int]:
        """Lock candidates in claim order, as many at a time as are still wanted.

        With all of them in one read and a LIMIT, InnoDB would also lock the rows behind
        the limit wherever it sorts, and nobody else could claim those.

        Returns:
            What was locked, and how many candidates were lost to others. Candidates that
            were not tried are not lost.
        """
        locked: list[Locked] = []
        tried = 0
        while len(locked) < request.limit and tried < len(candidates):
            wanted = candidates[tried : tried + request.limit - len(locked)]
            tried += len(wanted)
            locked += self.lock_keys(writer, request, wanted)
        return locked, tried - len(locked)


class Candidates(ByCandidates):
    """Read candidates without locks, then lock, check again and mark."""

    name = "candidates"

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.keeps_snapshot:
            # A plain read would see the queue as it was when the caller's
            # transaction began; a locking read sees it as it is.
            return self.lock_and_mark(writer, request)
        locked, drawn, lost = list[Locked](), 0, 0
        with writer.atomically():
            for new, _ in self.draws(
                request.limit * OVERDRAW, lambda size: self.draw(writer, size, self.look())
            ):
                rest = replace(request, limit=request.limit - len(locked))
                more, lost_too = self.lock_candidates(writer, rest, list(map(tuple, new)))
                locked, drawn, lost = locked + more, drawn + len(new), lost + lost_too
                if len(locked) >= request.limit:
                    break
            taken = self.mark(writer, request, locked)
        if drawn and lost == drawn:
            log.info("%s: all %d candidates were lost to others", self.mapping, lost)
        taken.candidates, taken.lost = drawn, lost
        return taken

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.level_statements
        return [*levels, self.look(), self.lock_by_keys(), self.mark_by_keys()]
