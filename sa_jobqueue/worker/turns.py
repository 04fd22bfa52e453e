"""A turn: one transaction that finishes the handled jobs and claims the next ones.

If the database refuses this transaction, its error does not tell which job causes it. The handled
jobs are then finished one by one, without a claim. A job that the database refuses is failed, with
the reason. All other jobs are finished, and no job is handled again because of another job's error.
If the turn has waited in vain for a lock, jobs whose rows others have locked are found first, by a
read that skips locked rows. While the server is away or its disk is full, no job is the cause, and
the turn waits.

Jobs that can be neither finished nor failed are set aside, and tried again later. A constraint or a
trigger may refuse every write to a row, or somebody may lock it for long. Such a job was handled:
nobody may handle it again, and it must not hold up other jobs. It therefore stays claimed, and its
claim is renewed as long as the worker runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any

from sqlalchemy.orm import Session

from ..databases import is_mistake, is_transient
from ..errors import ClaimLost, JobQueueError
from ..fence.claim import Claim, fence_of, jobs_by_token
from ..fence.statements import is_as_finished
from ..model.columns import error_text, in_ascii
from ..model.mapping import counting_together, word_of
from ..queue import turn_in_one_go
from ..sessions.writer import writing
from .handlers import Calls
from .in_hand import (
    Ended,
    InHand,
    jobs_of_locked_rows,
    log_end,
    log_job,
    log_lost,
    log_unreleased,
)
from .lanes import Failed, Lane, LaneOrder, NotDone, claims_lost_by, jobs_of, text_of
from .passed_over import PassedOver, may_be_of_a_row
from .transactions import PATIENCE, OwnerName, Pauses, cause_of

log = logging.getLogger("sa_jobqueue.worker")


@dataclass
class Batch:
    """What one turn is to do.

    Attributes:
        handled: jobs to finish.
        unhandled: jobs to release.
        wanted: for how many calls of handlers to claim jobs; 0: none.
    """

    handled: Sequence[InHand] = ()
    unhandled: Sequence[InHand] = ()
    wanted: int = 0


@dataclass
class TurnResult:
    """What a turn claimed and finished.

    Attributes:
        claims: each claim with its lane.
        finished: the jobs that were finished, without those whose claim was lost.
        claim_is_due: the turn has not made its claim; another turn makes it.
        refused: the database refused the claim.
    """

    claims: list[tuple[Lane[Any], Claim[Any]]] = field(default_factory=list)
    finished: list[InHand] = field(default_factory=list)
    claim_is_due: bool = False
    refused: bool = False


@dataclass
class Turns:
    """The turns of a worker in one database.

    Attributes:
        calls: how handlers are called; their jobs are finished on the same terms.
        shows: callbacks read finished jobs, which must then show their new values.
        paused: lanes whose jobs are neither claimed nor started.
        aside: jobs that can be neither finished nor failed; none during another try.
    """

    lanes: Sequence[Lane[Any]]
    owner_name: OwnerName
    calls: Calls
    shows: bool
    paused: frozenset[Lane[Any]] = frozenset()
    aside: list[InHand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transactions = self.owner_name.transactions
        self._passed = {lane: PassedOver(lane, self.calls.options) for lane in self.lanes}
        self._order = LaneOrder(self.lanes)
        self._asked = self.lanes[0]  # the lane of the last claim
        self._refused: dict[Lane[Any] | None, Pauses] = {}
        self._refusal = ""
        self._has_claimed = False
        # Claims whose COMMIT was not answered.
        self._unanswered: list[tuple[Lane[Any], Claim[Any]]] = []

    @property
    def refusal(self) -> str | None:
        """What the database refused last, while it is left alone for a pause."""
        return self._refusal if self._refused else None

    def turn(self, batch: Batch) -> TurnResult:
        """Finish the handled jobs, release the others, claim the next ones.

        Raises:
            Exception: what the database still refused after PATIENCE.
        """
        writes = bool(batch.handled or batch.unhandled)
        if not (writes or batch.wanted or self._unanswered):
            self.transactions.give_back()
            return TurnResult()
        if writes:
            self.transactions.wait_for_renewal()
        tried_again: list[InHand] = []
        if batch.wanted and self.aside and time.monotonic() >= self._aside_pauses.until:
            tried_again = self._try_aside_again()
        try:
            result = self.transactions.run(
                partial(self._in_session, batch=batch),
                finishes=writes or not batch.wanted,
                reads_first=self._unanswered,  # a first try adds to them
            )
        except Exception as error:
            if writes:
                result = self._one_by_one(batch, error)
            elif batch.wanted:
                result = self._after_refused_claim(error, batch.wanted)
            else:
                log.error(
                    "the answer to a COMMIT was lost; a reap returns the jobs that it may have "
                    "claimed to the queue: %s",
                    cause_of(error),
                )
                self._unanswered.clear()
                result = TurnResult()
        else:
            self._unanswered.clear()
            for lane, _ in result.claims:
                self._has_claimed = True
                self._refused.pop(lane, None)
        result.finished += tried_again
        return result

    def is_drained(self) -> bool:
        """Tell whether no job is left that a drain waits for."""
        try:
            left = self.transactions.run(
                lambda session: any(
                    lane.has_left(session, self._passed[lane].queue) for lane in self.lanes
                )
            )
        except Exception as error:
            self._note_refusal(None, "the check for remaining jobs", error)
            return False
        self._refused.pop(None, None)
        return not left

    def end(self, batch: Batch, patience: timedelta) -> TurnResult:
        """Finish the handled jobs, and release all other jobs.

        Args:
            patience: for how long jobs set aside are tried again while others have locked them.

        Raises:
            Exception: what the database still refused after PATIENCE.
        """
        result = self.turn(batch)
        pauses = Pauses()
        while self.aside:
            result.finished += self._try_aside_again()
            locked = any(is_transient(job.refused) for job in self.aside)
            if pauses.age > patience or not locked:
                break
            self.transactions.runtime.sleep(pauses.next())
        for in_hand in self.aside:
            text = "stays claimed; a reap returns it to the queue"
            log_job(log.error, in_hand, text, status=None)  # not yet the new one
        self.aside = []
        return result

    # -- the transaction ------------------------------------------------

    def _in_session(self, session: Session, *, batch: Batch) -> TurnResult:
        found = self._claimed_unanswered(session) if self._unanswered else []
        result = None if found else self._complete_and_claim(session, batch)
        if result is None:
            finished = self._finish(session, batch.handled) if batch.handled else []
            unhandled = [*batch.unhandled]
            if found and not batch.wanted:
                unhandled += [InHand(lane, job) for lane, jobs in found for job in jobs]
                found = []
            if unhandled:
                self._release(session, unhandled)
            result = TurnResult(found or self._claim(session, batch.wanted), finished)
        if not found:
            self._unanswered += [(lane, claim) for lane, claim in result.claims if claim]
        return result

    def _complete_and_claim(self, session: Session, batch: Batch) -> TurnResult | None:
        """Do a turn of done jobs by one verb; None: it needs several verbs, nothing was done."""
        lane, *others = self.lanes
        plain = all(
            done.outcome is None and not done.ended and not done.moved for done in batch.handled
        )
        if others or batch.unhandled or not (plain and batch.handled and batch.wanted):
            return None
        passes = self._passed[lane].queue is not lane.queue
        if lane in self.paused or passes or not self.owner_name.is_sure:
            return None
        try:
            claim = turn_in_one_go(
                lane.queue,
                session,
                jobs_of(batch.handled),
                owner=self.owner_name.current,
                limit=batch.wanted * lane.size,
                delete=self.calls.delete,
                options=self.calls.options,
                shown=self.shows,
            )
        except ClaimLost as error:  # the others are finished
            finished = _kept(batch.handled, error.lost)
            return TurnResult(self._claim(session, batch.wanted), finished)
        return None if claim is None else TurnResult([(lane, claim)], list(batch.handled))

    def _finish(self, session: Session, handled: Sequence[InHand]) -> list[InHand]:
        """Write the outcomes; return the jobs whose claim was not lost."""
        lost: list[Any] = []
        for done in handled:
            if done.moved and done.ended is not Ended.FINISHED and _is_finished(session, done):
                done.ended = Ended.FINISHED
        with counting_together(session, (lane.mapping for lane in self.lanes)):
            for lane in self.lanes:
                ours = [done for done in handled if done.lane.whole is lane and done.ended is None]
                lost += lane.finish(session, ours, delete=self.calls.delete)
        return _kept(handled, lost)

    def _release(self, session: Session, jobs: Sequence[InHand]) -> None:
        """Release jobs, but wait for no row that somebody else has locked."""
        locked = jobs_of_locked_rows(session, jobs)
        if locked:
            log_unreleased(locked, "somebody else has locked the row")
        for lane in self.lanes:
            free = [each.job for each in jobs if each.lane.whole is lane and each not in locked]
            lost = claims_lost_by(partial(lane.queue.release, session, free)) if free else []
            log_lost(InHand(lane, job) for job in lost)

    def _claim(self, session: Session, wanted: int) -> list[tuple[Lane[Any], Claim[Any]]]:
        claims: list[tuple[Lane[Any], Claim[Any]]] = []
        for lane in self._order if wanted else ():
            refused = self._refused.get(lane)
            if lane in self.paused or (refused and refused.until > time.monotonic()):
                continue
            if not self.owner_name.is_sure:  # the next turn checks the lock
                break
            self._asked = lane
            limit = wanted * lane.size
            claim = self._passed[lane].claim(session, self.owner_name.current, limit)
            claims.append((lane, claim))
            wanted -= ceil(len(claim) / lane.size)
            if not wanted:
                break
        return claims

    def _claimed_unanswered(self, session: Session) -> list[tuple[Lane[Any], Claim[Any]]]:
        """Find the claims of a COMMIT that succeeded although its answer was lost.

        They are found by their fences, because others may claim under the same name.
        """
        found: list[tuple[Lane[Any], Claim[Any]]] = []
        for lane, claim in self._unanswered:
            owner = claim.fences[0].owner
            fences = {(fence.identity, fence.owner_date) for fence in claim.fences}
            again = lane.queue.plan.claimed_by(session, str(owner), options=self.calls.options)
            ours = [(job, fence_of(job)) for job in again]
            jobs = [job for job, fence in ours if (fence.identity, fence.owner_date) in fences]
            if jobs:
                found.append((lane, Claim[Any](jobs_by_token(jobs))))
        return found

    # -- what was refused -----------------------------------------------

    def _after_refused_claim(self, error: Exception, wanted: int) -> TurnResult:
        """Pass over the rows that cannot be claimed; if there are none, leave the lane alone.

        Raises:
            Exception: the error, if no row explains it and it has lasted for PATIENCE.
        """
        lane = self._asked
        try:
            owner, jobs = self.owner_name.current, wanted * lane.size
            find = partial(self._passed[lane].find, owner=owner, wanted=jobs)
            if may_be_of_a_row(error) and self.transactions.run(find):
                return TurnResult(claim_is_due=True)
        except Exception as refusal:
            error = refusal
        self._note_refusal(lane, "a claim", error)
        return TurnResult(refused=True, claim_is_due=len(self.lanes) > 1)

    def _note_refusal(self, lane: Lane[Any] | None, what: str, error: Exception) -> None:
        """Log what the database refuses, once, and leave it alone for growing pauses.

        Raises:
            Exception: the error, if it has lasted for PATIENCE, or comes of a mistake.
        """
        self._refusal = f"the database refuses {what}: {cause_of(error)}"
        # A temporary error has been waited for already.
        mistaken = isinstance(error, JobQueueError) or (not self._has_claimed and is_mistake(error))
        if mistaken or self.transactions.is_temporary(error):
            raise error
        if lane not in self._refused:
            self._refused[lane] = Pauses()
            text = "the database refuses %s; the worker tries again: %s"
            log.error(text, what, cause_of(error), exc_info=error)
        elif self._refused[lane].age > PATIENCE:
            raise error
        self._refused[lane].next()

    def _one_by_one(self, batch: Batch, error: Exception) -> TurnResult:
        """Finish jobs whose turn was refused, and release others; another turn claims."""
        log.info(
            "the database refused a turn; the worker finishes its jobs one by one: %s",
            cause_of(error),
        )
        result = TurnResult(claim_is_due=batch.wanted > 0)
        result.finished = self._finish_each(batch.handled, error)
        if batch.unhandled:
            try:
                self.transactions.run_once(partial(self._release, jobs=batch.unhandled))
            except Exception as refused:
                log_unreleased(batch.unhandled, cause_of(refused))
        if not batch.wanted:
            self.turn(Batch())  # what a COMMIT may have claimed is released
        return result

    def _finish_each(self, jobs: Sequence[InHand], error: Any) -> list[InHand]:
        """Finish or fail each job; set aside those that the database does not take.

        Args:
            error: that of their last try. After a wait for a lock, jobs whose rows others have
                locked are set aside at once.

        Returns:
            The jobs that are finished.
        """
        finished: list[InHand] = []
        locked: Sequence[InHand] = ()
        if is_transient(error):
            try:
                look = partial(jobs_of_locked_rows, jobs=jobs)
                locked = self.transactions.run(look, finishes=True)
            except Exception as refused:
                if not is_transient(refused):
                    raise
                locked = jobs  # the whole file of SQLite
        for in_hand in jobs:
            if in_hand in locked:
                self._set_aside(in_hand, error)
                continue
            try:
                finished += self._finish_one(in_hand)
            except Exception as refused:
                if self.transactions.is_missing(refused):
                    raise
                self._set_aside(in_hand, refused)
        return finished

    def _finish_one(self, in_hand: InHand) -> list[InHand]:
        """Write the outcome of a job, or as much of it as the database takes; or fail the job.

        Returns:
            the job, unless its claim was lost.

        Raises:
            Exception: the database takes neither.
        """
        run = partial(self.transactions.run, finishes=True)
        try:
            return run(partial(self._finish, handled=[in_hand]))
        except Exception as error:
            if self.transactions.is_temporary(error):
                raise
            for outcome, text in _ways_to_end(in_hand, error, self.calls.delay(in_hand)):
                write = partial(
                    in_hand.lane.finish_otherwise, job=in_hand.job, outcome=outcome, text=text
                )
                try:
                    lost = run(write)
                except Exception as refused:
                    if self.transactions.is_temporary(refused):
                        raise
                    continue
                if outcome is not in_hand.outcome:
                    in_hand.outcome = outcome
                    what = "cannot be finished, and its attempt fails"
                    log_end(log.error, in_hand, what, cause_of(error))
                return _kept([in_hand], lost)
            raise

    def _set_aside(self, in_hand: InHand, error: Exception) -> None:
        """Try a job again later; log once what refuses it."""
        if in_hand.refused is None:
            text = (
                "can be neither finished nor failed. The worker goes on with other jobs and tries "
                f"again; find out what refuses or locks its row: {cause_of(error)}"
            )
            log_job(log.error, in_hand, text, status=None)
            if not self.aside:  # later ones do not put off the next try
                self._aside_pauses = Pauses(1.0, 300.0, spread=0.0)
                self._aside_pauses.next()
        in_hand.refused = error
        self.aside.append(in_hand)

    def _try_aside_again(self) -> list[InHand]:
        """Try once more to finish the jobs set aside; return those that are finished."""
        jobs, self.aside = self.aside, []  # nobody renews their claims meanwhile
        try:
            self.transactions.wait_for_renewal()
            finished = self._finish_each(jobs, jobs[0].refused)
        except BaseException:
            self.aside = jobs
            raise
        self._aside_pauses.next()
        return finished


def _kept(handled: Sequence[InHand], lost: Sequence[Any]) -> list[InHand]:
    """Log the jobs whose claims were lost; return the others."""
    gone = set(map(id, lost))
    log_lost(done for done in handled if id(done.job) in gone)
    return [done for done in handled if id(done.job) not in gone and done.ended is not Ended.LOST]


def _is_finished(session: Session, in_hand: InHand) -> bool:
    """Tell whether a handler has finished its job in a transaction of its own.

    Its job may be expired by now, and tell no status; or the handler has only moved the job on to
    another status of its claim.
    """
    mapping, lane = in_hand.lane.mapping, in_hand.lane
    then = word_of(mapping, vars(in_hand.job).get(lane.status_key) or lane.queue.then)
    if then in mapping.during:
        return False
    with writing(session, mapping, reads=True) as writer:
        return is_as_finished(writer, mapping, in_hand.fence, then)


def _ways_to_end(
    in_hand: InHand, error: Exception, delay: timedelta | None
) -> Iterator[tuple[Any, str | None]]:
    """Yield outcomes with their texts, the most informative first.

    A column may be unable to store an emoji, or a text of any length.
    """
    given = in_hand.outcome
    reason = f"the finish was refused: {type(error).__name__}: {cause_of(error)}"
    ways: list[tuple[Any, Any]] = [(Failed(error, delay), reason)]
    if isinstance(given, NotDone | Failed):
        ways.insert(0, (given, text_of(given)))
    for outcome, told in ways:
        text = error_text(told)
        yield from [] if text is None else [(outcome, text), (outcome, in_ascii(text))]
        yield outcome, None
