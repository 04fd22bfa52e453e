"""A turn: one transaction that finishes what was handled and claims what is next."""

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
from .lanes import Lane, Rota, lost_of
from .outcomes import Outcome
from .owning import Owning
from .patience import Patience

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


@dataclass
class Turned(Generic[T]):
    """What came of a turn.

    Attributes:
        claims: what was claimed, by lanes.
        finished: what was finished, without those that were lost.
    """

    claims: list[tuple[Lane[T], Claim[T]]] = field(default_factory=list)
    finished: list[InHand[T]] = field(default_factory=list)

    @property
    def in_hand(self) -> list[InHand[T]]:
        """The claimed jobs."""
        return [InHand(lane, job) for lane, claim in self.claims for job in claim]

    @property
    def fences(self) -> list[Fence]:
        """Their fences."""
        return [fence for _, claim in self.claims for fence in claim.fences]


@dataclass
class Turns(Generic[T]):
    """The turns of a worker.

    Attributes:
        limit: jobs claimed at once.
        delete: whether done jobs are deleted; None goes by the model.
        options: loader options for the claims.
        names: claimed under since the last known COMMIT.
    """

    lanes: Sequence[Lane[T]]
    patience: Patience
    owning: Owning
    limit: int
    delete: bool | None
    options: Sequence[Any]
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rota = Rota(self.lanes)

    def turn(self, batch: Batch[T], *, claim: bool) -> Turned[T]:
        """Finish what was handled, release what was not, claim what is next."""

        def turn(session: Session) -> Turned[T]:
            found = self._claimed_unawares(session, batch)
            finished = self._finish(session, batch.handled)
            self._release(session, [(one.lane, one.job) for one in batch.waiting])
            if not claim:
                self._release(session, [(lane, claimed) for lane, claimed in found])
                return Turned([], finished)
            return Turned(found or self._claim(session), finished)

        turned = self.patience.transaction(turn)
        self.names.clear()
        return turned

    def _claimed_unawares(
        self, session: Session, batch: Batch[T]
    ) -> list[tuple[Lane[T], Claim[T]]]:
        """Find the claims of a COMMIT that succeeded while its answer was lost."""
        if not (self.patience.in_doubt and self.owning.is_ours_alone):
            return []
        # By their dates: the same COMMIT may have finished a job, and claimed it anew.
        known = {
            (fence.identity, date) for fence in map(fence_of, batch) for date in fence.token.dates
        }
        found = []
        for lane in self.lanes:
            unknown = [
                job
                for name in sorted(self.names)  # several, where the lock was lost in between
                for job in lane.queue.claimed_by(session, name)
                if (fence_of(job).identity, fence_of(job).owner_date) not in known
            ]
            found.append((lane, Claim[T](jobs_by_token(unknown))))
        return [(lane, claim) for lane, claim in found if claim]

    def _finish(self, session: Session, handled: Sequence[InHand[T]]) -> list[InHand[T]]:
        """Write what became of the jobs; return those whose claim was not lost."""
        lost: list[Any] = []
        for lane in self.lanes:
            of_lane: list[tuple[T, Outcome]] = [
                (one.job, one.outcome) for one in handled if one.lane is lane
            ]
            lost += lane.finish(session, of_lane, delete=self.delete)
        return [one for one in handled if not any(one.job is job for job in lost)]

    def _release(self, session: Session, jobs: Iterable[tuple[Lane[T], Any]]) -> None:
        by_lane: dict[Lane[T], list[Any]] = {}
        for lane, job in jobs:
            by_lane.setdefault(lane, []).append(job)
        for lane, of_lane in by_lane.items():
            lost_of(partial(lane.queue.release, session, of_lane))

    def _claim(self, session: Session) -> list[tuple[Lane[T], Claim[T]]]:
        claims: list[tuple[Lane[T], Claim[T]]] = []
        wanted = self.limit
        try:
            for lane in self._rota:
                claimed = self._claim_by(lane, session, wanted)
                claims.append((lane, claimed))
                wanted -= len(claimed)
                if not wanted:
                    break
        except LockLost as error:  # that lane claimed nothing; the next turn has a new name
            log.warning("%s", error)
        return claims

    def _claim_by(self, lane: Lane[T], session: Session, limit: int) -> Claim[T]:
        claimed = lane.queue.claim(
            session, owner=self.owning.owner, limit=limit, options=self.options
        )
        self.names.update(fence.owner for fence in claimed.fences if fence.owner is not None)
        return claimed
