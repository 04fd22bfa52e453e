"""A turn: one transaction that finishes the handled jobs and claims the next ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from ..errors import ClaimLost, LockLost
from ..fence.claim import Claim, fence_of, jobs_by_token
from .connections import KeptConnection
from .in_hand import Batch, Ended, InHand, jobs_of_locked_rows, log_lost, log_unreleased
from .lanes import Lane, LaneOrder, claims_lost_by
from .owner import OwnerName
from .refusals import UNDIVIDED, PassedOver, RefusedFinish, SetAside, may_come_from_a_row
from .transactions import Refusals, Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


@dataclass
class TurnResult(Generic[T]):
    """What a turn claimed and finished.

    Attributes:
        claims: each claim with its lane.
        finished: the jobs that were finished, without those whose claim was lost.
        claim_is_due: the turn has only finished jobs; the claim follows in another turn.
        refused: the database refused the claim.
    """

    claims: list[tuple[Lane[T], Claim[T]]] = field(default_factory=list)
    finished: list[InHand[T]] = field(default_factory=list)
    claim_is_due: bool = False
    refused: bool = False

    @property
    def in_hand(self) -> list[InHand[T]]:
        """The claimed jobs."""
        return [in_hand for lane, claim in self.claims for in_hand in in_hand_of(lane, claim)]


@dataclass
class Turns(Generic[T]):
    """The turns of a worker.

    Attributes:
        delete: whether done jobs are deleted; None: as the model says.
        options: loader options for the claims.
        delay: returns how long a job waits that is failed because its finish was refused.
        wait_for_renewal: waits until no renewal of claims is under way.
        is_at_rest: tells whether a lane's queue is paused.
        shows: callbacks read finished jobs, which must then show their new values.
        kept: the connection of the turns; None: each takes one of the pool's.
        hopeless: the database has refused for PATIENCE to finish jobs.
    """

    lanes: Sequence[Lane[T]]
    transactions: Transactions
    owner_name: OwnerName
    delete: bool | None
    options: Sequence[Any]
    delay: Callable[[InHand[T]], timedelta | None]
    wait_for_renewal: Callable[[], None]
    is_at_rest: Callable[[Lane[T]], bool]
    shows: bool
    kept: KeptConnection | None = None
    hopeless: bool = False

    def __post_init__(self) -> None:
        self.passed_over: PassedOver[T] = PassedOver(self.owner_name, self.options)
        self._order = LaneOrder(self.lanes)
        # Claims whose COMMIT was not answered.
        self._unanswered: list[tuple[Lane[T], Claim[T]]] = []
        self._refusals = {lane: Refusals(self.transactions, "a claim") for lane in self.lanes}
        self._overdue: Exception | None = None  # a refusal that ends the run
        self._set_aside = SetAside(self.transactions, self._finishing, self.wait_for_renewal)

    @property
    def aside(self) -> list[InHand[T]]:
        """Jobs that can be neither finished nor failed; none during another try."""
        return self._set_aside.resting

    def turn(self, batch: Batch[T]) -> TurnResult[T]:
        """Finish the handled jobs, release the others, claim the next ones.

        Raises:
            Exception: what the database still refused after PATIENCE.
        """
        if self._overdue is not None:
            raise self._overdue
        if all(map(self.is_at_rest, self.lanes)):
            batch = replace(batch, wanted=0)
        if not batch.is_empty:
            self.wait_for_renewal()
        finished = self._set_aside.try_again() if batch.wanted else []
        result = self._turn_or_parts(batch)
        result.finished += finished
        return result

    @property
    def held_until(self) -> float:
        """When the first lane that is left alone may be claimed from again; inf: there is none."""
        return min(each.rests_until for each in self._refusals.values())

    def end(self, batch: Batch[T], patience: timedelta) -> TurnResult[T]:
        """Finish the handled jobs, and release all other jobs.

        Args:
            patience: for how long jobs set aside are tried again while others have locked them.

        Raises:
            Exception: what the database still refused after PATIENCE.
        """
        if not batch.is_empty:
            self.wait_for_renewal()
        result = self._turn_or_parts(batch)
        result.finished += self._set_aside.last_try(patience)
        return result

    def _turn_or_parts(self, batch: Batch[T]) -> TurnResult[T]:
        """Do a turn; if it is refused, do its parts one after the other."""
        claim = batch.wanted > 0
        if batch.is_empty and not claim and not self._unanswered:
            return TurnResult()
        # A claim that waits for long must not delay the finish of handled jobs, and a release is
        # not worth a long wait.
        patience = None if claim and batch.is_empty else UNDIVIDED
        try:
            result = self.transactions.run(
                partial(self._turn, batch=batch),
                patience=patience,
                reads_first=lambda: bool(self._unanswered),  # a first try adds to them
                writes_claims=not batch.is_empty,
                kept=self.kept,
            )
        except Exception as error:
            if not batch.is_empty:
                return self._finish_alone(batch, error)
            if not claim:
                return self._leave_unanswered(error)
            lanes = [lane for lane in self._order.usual if self._most(lane, batch.wanted)]
            if len(lanes) <= 1 or self.transactions.is_temporary(error):
                lane = lanes[0] if lanes else self.lanes[0]
                return self._after_refused_claim(lane, error, batch.wanted)
            return self._claim_apart(lanes, batch.wanted)
        self._unanswered.clear()
        self._end_refusals(result)
        return result

    def _end_refusals(self, result: TurnResult[T]) -> None:
        """Note that the lanes which were asked for jobs were not refused."""
        for lane, _ in result.claims:
            self._refusals[lane].end()

    def _claim_apart(self, lanes: Sequence[Lane[T]], wanted: int) -> TurnResult[T]:
        """Claim from each lane in a transaction of its own, since their common one was refused.

        Raises:
            Exception: as of :meth:`_after_refused_claim`. If other lanes have claimed jobs
                meanwhile, the next turn raises it.
        """
        result: TurnResult[T] = TurnResult()
        for lane in lanes:
            alone = partial(self._turn, batch=Batch(wanted=wanted), lanes=[lane])
            patience = UNDIVIDED if result.claims else None
            try:
                of_lane = self.transactions.run(alone, patience=patience, kept=self.kept)
            except Exception as error:
                if result.claims and self.transactions.is_temporary(error):
                    break  # the next turn waits for longer, and the claimed jobs do not
                try:
                    of_lane = self._after_refused_claim(lane, error, wanted)
                except Exception as overdue:
                    if not result.claims:
                        raise
                    self._overdue = overdue
                    break
            else:
                self._unanswered.clear()
                self._end_refusals(of_lane)
            result.claims += of_lane.claims
            result.claim_is_due |= of_lane.claim_is_due
            result.refused |= of_lane.refused
            wanted -= sum(len(claim) for _, claim in of_lane.claims)
            if wanted <= 0:
                break
        return result

    def _after_refused_claim(self, lane: Lane[T], error: Exception, wanted: int) -> TurnResult[T]:
        """Pass over the rows that cannot be claimed; if there are none, note the refusal.

        Raises:
            Exception: the error, if no row explains it and it has lasted for PATIENCE.
        """
        try:
            if may_come_from_a_row(error) and self.transactions.run(
                partial(self.passed_over.find, lane=lane, wanted=wanted, error=error),
                kept=self.kept,
            ):
                return TurnResult(claim_is_due=True)
        except Exception as refusal:
            error = refusal
        self._refusals[lane].note(error)
        return TurnResult(refused=True)

    def _turn(
        self, session: Session, *, batch: Batch[T], lanes: Iterable[Lane[T]] | None = None
    ) -> TurnResult[T]:
        result = self._finish_and_claim(session, batch, lanes)
        for done in result.finished:
            done.may_be_finished = True  # the COMMIT follows
        return result

    def _finish_and_claim(
        self, session: Session, batch: Batch[T], lanes: Iterable[Lane[T]] | None
    ) -> TurnResult[T]:
        found = self._claimed_unanswered(session) if self._unanswered else []
        in_one = None if found else self._complete_and_claim(session, batch)
        if in_one is not None:
            self._unanswered += in_one.claims
            return in_one
        finished = self._finish(session, batch.handled) if batch.handled else []
        if batch.unhandled:
            self._release(session, batch.unhandled)
        if not batch.wanted:
            self._release(
                session, [InHand(lane, job) for lane, claimed in found for job in claimed]
            )
            return TurnResult([], finished)
        claims = found or self._claim(session, batch.wanted, lanes)
        self._unanswered += claims
        return TurnResult(claims, finished)

    def _complete_and_claim(self, session: Session, batch: Batch[T]) -> TurnResult[T] | None:
        """Do a turn of done jobs by one verb; None: it needs several verbs, nothing was done."""
        if len(self.lanes) > 1 or batch.unhandled or not batch.handled:
            return None
        (lane,) = self.lanes
        most = self._most(lane, batch.wanted)
        others = [done for done in batch.handled if done.outcome is not None or done.ended]
        if others or not most or self.passed_over.queue_of(lane) is not lane.queue:
            return None
        try:
            claim = lane.complete_and_claim(
                session,
                batch.handled,
                owner=self.owner_name.owner,
                limit=most,
                delete=self.delete,
                options=self.options,
                shown=self.shows,
            )
        except LockLost as error:  # nothing is claimed; the next turn has a new name
            self.owner_name.note_loss(error)
            return TurnResult([], self._finish(session, batch.handled))
        except ClaimLost as error:  # the others are finished
            lost = set(map(id, error.lost))
            log_lost(done for done in batch.handled if id(done.job) in lost)
            finished = [done for done in batch.handled if id(done.job) not in lost]
            return TurnResult(self._claim(session, batch.wanted), finished)
        return None if claim is None else TurnResult([(lane, claim)], list(batch.handled))

    # -- what was refused -----------------------------------------------

    def _finish_alone(self, batch: Batch[T], error: Exception) -> TurnResult[T]:
        """Finish jobs whose turn was refused; the claim comes in a turn of its own."""
        log.info(
            "the database refused a turn; the worker finishes its jobs without a claim: %s",
            cause_of(error),
        )
        finishing = self._finishing()
        try:
            finishing.run(list(batch.handled), error)
        except Exception:
            self.hopeless = True
            raise
        self._set_aside.add(finishing.refused)
        self._release_alone(batch.unhandled)
        if not batch.wanted:
            self._turn_or_parts(Batch())
        return TurnResult([], finishing.finished, claim_is_due=batch.wanted > 0)

    def _finishing(self) -> RefusedFinish[T]:
        return RefusedFinish(self.transactions, self._finish, self.delay)

    def _release_alone(self, jobs: Sequence[InHand[T]]) -> None:
        """Release jobs one by one, since their turn was refused."""
        for number, in_hand in enumerate(jobs):
            release = partial(self._release, jobs=[in_hand])
            try:
                self.transactions.run(release, patience=UNDIVIDED, writes_claims=True)
            except Exception as error:
                away = self.transactions.is_temporary(error)
                log_unreleased(jobs[number:] if away else [in_hand], cause_of(error))
                if away:
                    return

    def _leave_unanswered(self, error: Exception) -> TurnResult[T]:
        log.error(
            "the answer to a COMMIT was lost; a reap returns the jobs that it may have claimed to "
            "the queue: %s",
            cause_of(error),
        )
        self._unanswered.clear()
        return TurnResult()

    def _claimed_unanswered(self, session: Session) -> list[tuple[Lane[T], Claim[T]]]:
        """Find the claims of a COMMIT that succeeded although its answer was lost.

        They are found by their fences, because others may claim under the same name.
        """
        claims: list[tuple[Lane[T], Claim[T]]] = []
        for lane in self.lanes:
            fences = [
                fence
                for of_lane, claim in self._unanswered
                if of_lane is lane
                for fence in claim.fences
            ]
            known = {(fence.identity, fence.owner_date) for fence in fences}
            found = [
                job
                for name in sorted({str(fence.owner) for fence in fences})
                for job in lane.queue.plan.claimed_by(session, name, options=self.options)
                if (fence_of(job).identity, fence_of(job).owner_date) in known
            ]
            claims.append((lane, Claim[T](jobs_by_token(found))))
        return [(lane, claim) for lane, claim in claims if claim]

    # -- the parts of a turn --------------------------------------------

    def _finish(self, session: Session, handled: Sequence[InHand[T]]) -> list[InHand[T]]:
        """Write the outcomes; return the jobs whose claim was not lost."""
        lost: set[int] = set()
        for lane in self.lanes:
            of_lane = [
                in_hand for in_hand in handled if in_hand.lane is lane and in_hand.ended is None
            ]
            lost.update(map(id, lane.finish(session, of_lane, delete=self.delete)))
        log_lost(in_hand for in_hand in handled if id(in_hand.job) in lost)
        return [
            in_hand
            for in_hand in handled
            if id(in_hand.job) not in lost and in_hand.ended is not Ended.LOST
        ]

    def _release(self, session: Session, jobs: Sequence[InHand[T]]) -> None:
        """Release jobs, but wait for no row that somebody else has locked."""
        locked = jobs_of_locked_rows(session, jobs)
        if locked:
            log_unreleased(locked, "somebody else has locked the row")
        by_lane: dict[Lane[T], list[Any]] = {}
        for in_hand in jobs:
            if in_hand not in locked:
                by_lane.setdefault(in_hand.lane, []).append(in_hand.job)
        for lane, of_lane in by_lane.items():
            lost = claims_lost_by(partial(lane.queue.release, session, of_lane))
            log_lost(InHand(lane, job) for job in lost)

    def _claim(
        self, session: Session, wanted: int, lanes: Iterable[Lane[T]] | None = None
    ) -> list[tuple[Lane[T], Claim[T]]]:
        claims: list[tuple[Lane[T], Claim[T]]] = []
        try:
            for lane in self._order if lanes is None else lanes:
                most = self._most(lane, wanted)
                if not most:
                    continue
                claimed = self.passed_over.claim(session, lane, most)
                claims.append((lane, claimed))
                wanted -= len(claimed)
                if not wanted:
                    break
        except LockLost as error:  # the lane claimed nothing; the next turn has a new name
            self.owner_name.note_loss(error)
        return claims

    def _most(self, lane: Lane[T], wanted: int) -> int:
        """Return how many jobs of a lane may be claimed now."""
        if self.is_at_rest(lane) or (len(self.lanes) > 1 and self._refusals[lane].is_resting):
            return 0
        return wanted


def in_hand_of(lane: Lane[T], claim: Claim[T]) -> list[InHand[T]]:
    """Return the jobs of a claim, to be handled."""
    key = lane.mapping.attributes.get("attempts")  # None without RetryMixin
    if key is None:
        return [InHand(lane, job, claim) for job in claim]
    return [InHand(lane, job, claim, getattr(job, key)) for job in claim]
