"""A renewal waits for no row that somebody has locked: it would hold up all other claims.

A row may be locked for long: by a transactional handler, or by what the application does to it.
Nobody reaps a claim whose row is locked: the lock is its lease. The claim is renewed when the
row is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from ..errors import ClaimLost
from ..fence.claim import jobs_by_token
from ..fence.lock import lock_unlocked
from ..fence.token import Fence
from ..sessions.writer import writing


def renew_unlocked(
    session: Session, fences: Sequence[Fence], renew: Callable[[Session, Sequence[Fence]], None]
) -> None:
    """Renew claims, but wait for no lock where the database can skip locked rows.

    Raises:
        ClaimLost: for those that are not ours any more, after the others were written.
    """
    unlocked: list[Fence] = []
    lost: list[Fence] = []
    for part in jobs_by_token(fences):
        with writing(session, part.mapping, rows=True, reads=True) as writer:
            if writer.database.skip_locked:
                ours, gone = lock_unlocked(writer, part)
            else:
                ours, gone = list(part.fences), []
        unlocked += ours
        lost += gone
    if unlocked:
        renew(session, unlocked)
    if lost:
        raise ClaimLost("renew", lost=lost, kept=unlocked)
