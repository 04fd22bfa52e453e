"""The two reads of candidates: a plain read of keys, then a locking read by key.

A candidate is a row that a claim looks at before it locks it. The plain read may use
any criteria, walk any index, and run outside the transaction or on a replica: it locks
nothing. The locking read goes by primary key, and checks the status and all criteria
again, so what a lagging replica returns is only ever a proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import Select, select

from ...model.keys import by_key, key_values
from ...sessions.writer import Writer
from ..spec import Request
from .job_reads import LockingRead
from .ready_rows import ReadyRows

#: How many candidates are read for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4


class CandidateReads:
    """The reads of candidates of one queue on one database.

    Args:
        columns: what the plain read selects; the primary key comes first.
        by_index: bind the plain read to the claim index where the index serves.
    """

    def __init__(self, ready: ReadyRows, *columns: Any, by_index: bool) -> None:
        self._ready = ready
        self._columns = columns
        self._by_index = by_index
        self.locking = LockingRead(ready, self.lock_by_keys)

    @cached_property
    def plain(self) -> Any:
        """The plain read of the next candidates."""
        ready, read = self._ready, self.plain_elsewhere
        if self._by_index and ready.spec.served and ready.claim_index_hint:
            return ready.by_claim_index(read)
        hint = ready.database.order_hint
        unhinted = hint is None or ready.spec.order_by or not ready.mapping.table.primary_key
        return read if unhinted else read.with_hint(ready.mapping.table, hint)

    @cached_property
    def plain_elsewhere(self) -> Any:
        """The plain read for another session, whose table may be a copy without indexes."""
        return self._ready.select(*self._columns, plain=True)

    def lock_by_keys(self, *columns: Any) -> Select[Any]:
        """Select the rows of some keys that are still claimable; lock them, pass over locked."""
        ready = self._ready
        statement = (
            select(*columns)
            .where(ready.key_is_in("sa_jobqueue_keys"), *ready.criteria)
            .order_by(*ready.spec.order)
        )
        return ready.locked(by_key(statement, ready.mapping.table, ready.database))

    def lock(
        self, writer: Writer, request: Request, candidates: Sequence[tuple[Any, ...]]
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
            parameters = {"sa_jobqueue_keys": self.lockable(wanted)}
            locked += self.locking.run(writer, request, parameters)
        return locked, tried - len(locked)

    def lockable(self, identities: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return keys for a locking read that leaves no lock on rows that fail its criteria.

        InnoDB looks a single key up in another way, and keeps the row locked until
        the transaction ends: then the row's owner could not finish it. A second key of
        NULL prevents that, and finds no row.
        """
        values = key_values(identities)
        if len(identities) == 1 and self._ready.database.keeps_one_key:
            width = len(self._ready.mapping.keys)
            return [values[0], None if width == 1 else (None,) * width]
        return values
