"""Rows that somebody else has locked: the worker asks for them, and waits for none.

Each wait for a locked row takes as long as the lock timeout, and holds up all other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from ..fence.claim import jobs_by_token
from ..fence.statements import lock_unlocked
from ..fence.token import Fence
from ..sessions.writer import writing
from .in_hand import InHand

T = TypeVar("T")


def lock_free_rows(session: Session, fences: Sequence[Fence]) -> tuple[list[Fence], list[Fence]]:
    """Lock the rows of claims that nobody else has locked, until the transaction ends.

    Returns:
        The claims whose rows are not locked by others, and the lost claims. Where the database
        cannot skip locked rows, nothing is locked, and the first list has all claims.
    """
    free: list[Fence] = []
    lost: list[Fence] = []
    for part in jobs_by_token(fences):
        with writing(session, part.mapping, rows=True, reads=True) as writer:
            if writer.database.skip_locked:
                ours, gone = lock_unlocked(writer, part)
            else:
                ours, gone = list(part.fences), []
        free += ours
        lost += gone
    return free, lost


def jobs_of_locked_rows(session: Session, jobs: Sequence[InHand[T]]) -> list[InHand[T]]:
    """Return the jobs whose rows others have locked."""
    free, lost = lock_free_rows(session, [in_hand.fence for in_hand in jobs])
    others = {(id(fence.token), fence.identity) for fence in (*free, *lost)}
    return [
        in_hand
        for in_hand in jobs
        if (id(in_hand.fence.token), in_hand.fence.identity) not in others
    ]
