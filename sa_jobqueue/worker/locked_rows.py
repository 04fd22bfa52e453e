"""Which handled jobs have rows that somebody else has locked?

Each wait for a locked row takes as long as the lock timeout. The worker therefore asks for all such
rows at once, and does not wait for them one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from ..fence.claim import jobs_by_token
from ..fence.lock import lock_unlocked
from ..sessions.writer import writing
from .in_hand import InHand

T = TypeVar("T")


def jobs_of_locked_rows(session: Session, jobs: Sequence[InHand[T]]) -> list[InHand[T]]:
    """Return the jobs whose rows others have locked; wait for no lock.

    It finds none where the database cannot skip locked rows. Until the transaction ends, we lock
    the rows of the other jobs.
    """
    free: set[tuple[int, tuple[object, ...]]] = set()
    for part in jobs_by_token([in_hand.fence for in_hand in jobs]):
        with writing(session, part.mapping, rows=True, reads=True) as writer:
            if not writer.database.skip_locked:
                return []
            for fences in lock_unlocked(writer, part):  # ours, and those of lost claims
                free.update((id(fence.token), fence.identity) for fence in fences)
    return [
        in_hand for in_hand in jobs if (id(in_hand.fence.token), in_hand.fence.identity) not in free
    ]
