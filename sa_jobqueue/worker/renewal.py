"""A renewal does not wait for locked rows: it would hold up all other claims.

A transactional handler or the application may lock a row for long. Nobody reaps a claim whose row
is locked: the lock replaces the lease. The claim is renewed when the
row is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from ..errors import ClaimLost
from ..fence.token import Fence
from .locked_rows import lock_free_rows


def renew_unlocked(
    session: Session, fences: Sequence[Fence], renew: Callable[[Session, Sequence[Fence]], None]
) -> None:
    """Renew claims, but wait for no lock where the database can skip locked rows.

    Raises:
        ClaimLost: for lost claims, after all other claims were renewed.
    """
    unlocked, lost = lock_free_rows(session, fences)
    if unlocked:
        renew(session, unlocked)
    if lost:
        raise ClaimLost("renew", lost=lost, kept=unlocked)
