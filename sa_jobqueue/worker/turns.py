"""A turn: one transaction that finishes the handled jobs and claims the next ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from ..errors import LockLost
from ..fence.claim import Claim, fence_of, jobs_by_token
from ..fence.token import Fence
from .batch import Batch, InHand
from .lanes import Lane, LaneOrder, claims_lost_by
from .outcomes import Outcome
from .owner_name import OwnerName
from .transactions import Transactions

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


@dataclass
class TurnResult(Generic[T]):
    """What a turn claimed and finished.

    Attributes:
        claims: each claim with its lane.
        finished: the jobs that were finished, without those whose claim was lost.
    """

    claims: list[tuple[Lane[T], Claim[T]]] = field(default_factory=list)
    finished: list[InHand[T]] = field(default_factory=list)

    @property
    def in_hand(self) -> list[InHand[T]]:
        """The claimed jobs."""
        return [in_hand for lane, claim in self.claims for in_hand in _in_hand(lane, claim)]

    @property
    def fences(self) -> list[Fence]:
        """The fences of the claimed jobs."""
        return [fence for _, claim in self.claims for fence in claim.fences]


@dataclass
class Turns(Generic[T]):
    """The turns of a worker.

    Attributes:
        limit: the most jobs that a turn claims.
        delete: whether done jobs are deleted; None goes by the model.
        options: loader options for the claims.
        names: the names claimed under since the last COMMIT that was answered.
    """

    lanes: Sequence[Lane[T]]
    transactions: Transactions
    owner_name: OwnerName
    limit: int
    delete: bool | None
    options: Sequence[Any]
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._order = LaneOrder(self.lanes)

    def turn(self, batch: Batch[T], *, claim: bool) -> TurnResult[T]:
        """Finish the handled jobs, release the others, claim the next ones."""

        def turn(session: Session) -> TurnResult[T]:
            found = self._claimed_unanswered(session, batch)
            finished = self._finish(session, batch.handled)
            self._release(
                session, [(unhandled.lane, unhandled.job) for unhandled in batch.unhandled]
            )
            if not claim:
                self._release(session, [(lane, claimed) for lane, claimed in found])
                return TurnResult([], finished)
            return TurnResult(found or self._claim(session), finished)

        result = self.transactions.run(turn)
        self.names.clear()
        return result

    def _claimed_unanswered(
        self, session: Session, batch: Batch[T]
    ) -> list[tuple[Lane[T], Claim[T]]]:
        """Find the claims of a COMMIT that succeeded although its answer was lost."""
        if not (self.transactions.in_doubt and self.owner_name.is_ours_alone):
            return []
        # With dates: the same COMMIT may have finished a job and claimed it anew.
        known = {
            (fence.identity, date) for fence in map(fence_of, batch) for date in fence.token.dates
        }
        found = []
        for lane in self.lanes:
            unknown = [
                job
                for name in sorted(self.names)  # several, if the lock was lost in between
                for job in lane.queue.claimed_by(session, name)
                if (fence_of(job).identity, fence_of(job).owner_date) not in known
            ]
            found.append((lane, Claim[T](jobs_by_token(unknown))))
        return [(lane, claim) for lane, claim in found if claim]

    def _finish(self, session: Session, handled: Sequence[InHand[T]]) -> list[InHand[T]]:
        """Write the outcomes; return the jobs whose claim was not lost."""
        lost: list[Any] = []
        for lane in self.lanes:
            of_lane: list[tuple[T, Outcome]] = [
                (in_hand.job, in_hand.outcome) for in_hand in handled if in_hand.lane is lane
            ]
            lost += lane.finish(session, of_lane, delete=self.delete)
        return [in_hand for in_hand in handled if not any(in_hand.job is job for job in lost)]

    def _release(self, session: Session, jobs: Iterable[tuple[Lane[T], Any]]) -> None:
        by_lane: dict[Lane[T], list[Any]] = {}
        for lane, job in jobs:
            by_lane.setdefault(lane, []).append(job)
        for lane, of_lane in by_lane.items():
            claims_lost_by(partial(lane.queue.release, session, of_lane))

    def _claim(self, session: Session) -> list[tuple[Lane[T], Claim[T]]]:
        claims: list[tuple[Lane[T], Claim[T]]] = []
        wanted = self.limit
        try:
            for lane in self._order:
                claimed = self._claim_by(lane, session, wanted)
                claims.append((lane, claimed))
                wanted -= len(claimed)
                if not wanted:
                    break
        except LockLost as error:  # the lane claimed nothing; the next turn has a new name
            log.warning("%s", error)
        return claims

    def _claim_by(self, lane: Lane[T], session: Session, limit: int) -> Claim[T]:
        claimed = lane.queue.claim(
            session, owner=self.owner_name.owner, limit=limit, options=self.options
        )
        self.names.update(fence.owner for fence in claimed.fences if fence.owner is not None)
        return claimed


def _in_hand(lane: Lane[T], claim: Claim[T]) -> list[InHand[T]]:
    key = lane.attempts_key
    if key is None:
        return [InHand(lane, job) for job in claim]
    return [InHand(lane, job, getattr(job, key)) for job in claim]
