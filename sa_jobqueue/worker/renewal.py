"""A renewal does not wait for locked rows: it would hold up all other claims.

A transactional handler or the application may lock a row for long. Nobody reaps a claim whose row
is locked: the lock replaces the lease. The claim is renewed when the
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
        ClaimLost: for lost claims, after all other claims were renewed.
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
