"""What is refused or unreadable: a job that cannot be finished or claimed holds up no other.

A turn finishes its jobs and makes the next claim in one transaction. If the database refuses this
transaction with a permanent error, the error does not tell which job causes it. The handled jobs
are therefore finished without a claim, by halves, until the job is found that the database refuses.
This job is failed, with the reason. All other jobs are finished, and no job is handled again
because of another job's error. If the turn has waited in vain for a lock, jobs whose rows others
have locked are found first, by a read that skips locked rows, and left to the caller.

Before a job is failed, its error text is written in simpler forms: a column may be unable to store
an emoji. While the server is away or its disk is full, no job is the cause, and the finish waits.
If the database also refuses to fail a job, the job is left to the caller.

Jobs that can be neither finished nor failed are set aside, and tried again later. A constraint or a
trigger may refuse every write to a row, or somebody may lock it for long. Such a job was handled:
nobody may handle it again, and it must not hold up other jobs. It therefore stays claimed, and its
claim is renewed as long as the worker runs.

Rows that cannot be claimed are passed over, so that they do not hold up other jobs.

A claim loads the jobs that it claims. A value of a row may have no meaning for this version of the
application: a member that a newer version has added to an Enum, or a text that a type of the
application cannot decrypt. Or the database refuses to write the row: a CHECK constraint that was
added as NOT VALID, or a trigger, forbids every change. The claim is then rolled back, and the next
claim meets the same row.

After such an error the worker tries jobs one by one, in the order of claims, until it has found as
many good ones as it wants. It reads them; if the database has refused the claim, or all can be
read, it claims them and undoes that. It logs those that cannot be claimed, and leaves them
unclaimed: a newer version of the application may understand them. After some minutes it tries them
again. Queues with serial keys or a strict order pass over nothing: there, a job must not overtake
another.

If none of the first hundred rows can be claimed, the cause may be the table, the server, or a
function that listens to claims. Then only rows that cannot even be read are passed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Executable, not_, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..dialects import is_mistake, is_refusal, is_shortage
from ..dialects.clock import utc_now
from ..dialects.connections import driver_errors
from ..errors import JobQueueError
from ..events.event import called_on
from ..events.listeners import copy_of
from ..fence.claim import Claim
from ..model.columns import error_text, in_ascii
from ..model.mapping import QueueMapping
from ..queue import JobQueue
from ..sessions.writer import writing
from .in_hand import (
    InHand,
    job_fields,
    job_name,
    jobs_of_locked_rows,
    log_lost,
    log_passed_over,
    log_refused,
)
from .lanes import Failed, Lane, NotDone, Outcome, claims_lost_by
from .owner import OwnerName
from .transactions import Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


#: For how long a turn or its part is run again after deadlocks and lost connections, before it is
#: divided.
UNDIVIDED = timedelta(seconds=2)


@dataclass(frozen=True)
class Refused(Generic[T]):
    """A job that can be neither finished nor failed, and the error of its finish."""

    in_hand: InHand[T]
    error: Exception


@dataclass
class RefusedFinish(Generic[T]):
    """Finish the handled jobs of a turn that was refused.

    Attributes:
        finish: writes the outcomes of jobs in a session, and returns the jobs whose claim was
            not lost.
        delay: returns how long a job that is failed here waits.
        finished: the jobs that were finished or failed, without those whose claim was lost.
        refused: the jobs that can be neither finished nor failed, or are locked.
    """

    transactions: Transactions
    finish: Callable[[Session, list[InHand[T]]], list[InHand[T]]]
    delay: Callable[[InHand[T]], timedelta | None]
    finished: list[InHand[T]] = field(default_factory=list)
    refused: list[Refused[T]] = field(default_factory=list)
    _waiting: list[tuple[list[InHand[T]], Exception]] = field(default_factory=list)

    def run(self, handled: list[InHand[T]], error: Exception) -> None:
        """Finish all jobs, or fail those that cannot be finished; wait for the server.

        Args:
            error: of the turn that was refused.

        Raises:
            Exception: the server was still away, or short of room, after PATIENCE.
        """
        pauses = self.transactions.pauses()
        if self._may_be_a_lock(error):
            handled = self._without_locked([Refused(in_hand, error) for in_hand in handled])
        parts = [handled] if handled else []
        warned = False
        while True:
            for part in parts:
                self._finish(part)
            if not self._waiting:
                return
            error = self._waiting[0][1]
            if pauses.are_over:
                raise error
            if not warned:
                log.error(
                    "the database refuses to finish jobs; the worker tries again: %s",
                    cause_of(error),
                )
            warned = True
            pauses.pause()
            parts, self._waiting = [part for part, _ in self._waiting], []

    def run_once(self, jobs: Sequence[Refused[T]]) -> None:
        """Finish or fail the jobs that the database takes at once."""
        free = self._without_locked(jobs)
        if free:
            self._finish(free)

    @property
    def left(self) -> list[Refused[T]]:
        """The jobs that are neither finished nor failed."""
        waiting = [Refused(in_hand, error) for part, error in self._waiting for in_hand in part]
        return [*self.refused, *waiting]

    def _may_be_a_lock(self, error: Exception) -> bool:
        is_away = is_shortage(error) or self.transactions.is_away(error)
        return self.transactions.is_temporary(error) and not is_away

    def _without_locked(self, jobs: Sequence[Refused[T]]) -> list[InHand[T]]:
        """Note the jobs whose rows others have locked as refused; return the other jobs."""
        look = partial(jobs_of_locked_rows, jobs=[refused.in_hand for refused in jobs])
        try:
            locked = set(self.transactions.run(look, patience=UNDIVIDED))
        except Exception as error:  # then the finish says what is wrong
            log.debug("the locked rows cannot be told from the others: %s", cause_of(error))
            locked = set()
        self.refused += [refused for refused in jobs if refused.in_hand in locked]
        return [refused.in_hand for refused in jobs if refused.in_hand not in locked]

    def _finish(self, jobs: list[InHand[T]]) -> None:
        """Finish jobs together; if they are refused, by halves."""
        try:
            self.finished += self.transactions.run(
                lambda session: self._finish_in(session, jobs),
                patience=UNDIVIDED,
                writes_claims=True,
            )
        except Exception as error:
            if is_shortage(error) or self.transactions.is_away(error):
                self._waiting.append((jobs, error))
            elif len(jobs) > 1:
                half = len(jobs) // 2
                self._finish(jobs[:half])
                self._finish(jobs[half:])
            elif self.transactions.is_temporary(error) or not self._fail(jobs[0], error):
                self.refused.append(Refused(jobs[0], error))

    def _finish_in(self, session: Session, jobs: list[InHand[T]]) -> list[InHand[T]]:
        finished = self.finish(session, jobs)
        for done in finished:
            done.may_be_finished = True  # the COMMIT follows
        return finished

    def _fail(self, in_hand: InHand[T], error: Exception) -> bool:
        """Write as much of an outcome as the database takes, or fail the job; False: neither."""
        for outcome, text in self._ways_to_end(in_hand, error):
            write = partial(_write, in_hand=in_hand, outcome=outcome, text=text)
            try:
                ours = self.transactions.run(write, patience=UNDIVIDED, writes_claims=True)
            except Exception as refused:
                if self.transactions.is_temporary(refused) or is_shortage(refused):
                    return False
                log.debug("%r with %r is refused", outcome, text, exc_info=refused)
                continue
            is_refused = outcome is not in_hand.outcome
            in_hand.outcome = outcome
            if is_refused:
                log_refused(in_hand, cause_of(error), outcome)
            self.finished += [in_hand] if ours else []
            return True
        return False

    def _ways_to_end(
        self, in_hand: InHand[T], error: Exception
    ) -> Iterator[tuple[Outcome, str | None]]:
        """Yield outcomes with their texts, the most informative first."""
        given = in_hand.outcome
        if isinstance(given, NotDone | Failed):
            yield from ((given, text) for text in _plainer(_text_of(given)))
        failed = Failed(error, self.delay(in_hand))
        reason = f"the finish was refused: {type(error).__name__}: {cause_of(error)}"
        yield failed, error_text(reason)
        yield from ((failed, text) for text in _plainer(error_text(reason)))


def _write(session: Session, *, in_hand: InHand[Any], outcome: Any, text: str | None) -> bool:
    """Write an outcome with a text of its own; tell whether the claim was not lost."""
    lost = claims_lost_by(
        partial(in_hand.lane.finish_otherwise, session, in_hand.job, outcome, text)
    )
    log_lost([in_hand] if lost else ())
    in_hand.may_be_finished |= not lost  # the COMMIT follows
    return not lost


def _text_of(outcome: Any) -> str | None:
    return error_text(outcome.error if isinstance(outcome, Failed) else outcome.reason)


def _plainer(text: str | None) -> Iterator[str | None]:
    """Yield the part of a text that most columns can store, then no text."""
    if text is None:
        return
    yield in_ascii(text)
    yield None


#: The pauses between two tries: each is twice as long as the one before, and a try may have to
#: wait for a lock.
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)


@dataclass
class SetAside(Generic[T]):
    """The jobs of a worker that are set aside.

    Attributes:
        finishing: returns a RefusedFinish for jobs whose turn was refused.
        wait_for_renewal: waits until no renewal is under way.
    """

    transactions: Transactions
    finishing: Callable[[], RefusedFinish[T]]
    wait_for_renewal: Callable[[], None]
    _refused: list[Refused[T]] = field(default_factory=list)
    _next: float = 0.0
    _trying: bool = False
    _pause: timedelta = FIRST_PAUSE

    @property
    def resting(self) -> list[InHand[T]]:
        """The jobs set aside; their claims are renewed, except during a try."""
        return [] if self._trying else [refused.in_hand for refused in self._refused]

    def add(self, jobs: Sequence[Refused[T]]) -> None:
        """Set jobs aside, and log for each what refuses it."""
        for refused in jobs:
            fields = {**job_fields(refused.in_hand), "status": None}  # not yet the new one
            log.error(
                "%s can be neither finished nor failed. The worker goes on with other jobs and "
                "tries again; find out what refuses or locks its row: %s",
                job_name(fields),
                cause_of(refused.error),
                extra=fields,
            )
        if jobs and not self._refused:  # later ones do not put off the next try
            self._pause = FIRST_PAUSE
            self._next = time.monotonic() + FIRST_PAUSE.total_seconds()
        self._refused += jobs

    def try_again(self) -> list[InHand[T]]:
        """If a try is due, finish the jobs that the database now takes; return them."""
        if not self._refused or time.monotonic() < self._next:
            return []
        finished = self._try()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next = time.monotonic() + self._pause.total_seconds()
        return finished

    def last_try(self, patience: timedelta) -> list[InHand[T]]:
        """Finish the jobs that can be finished before the worker ends; return them.

        It waits for locks, but not for other refusals, which do not pass.
        """
        finished: list[InHand[T]] = []
        pauses = self.transactions.pauses(patience)
        while self._refused:
            finished += self._try()
            locked = any(self.transactions.is_temporary(left.error) for left in self._refused)
            if pauses.are_over or not locked:
                break
            pauses.pause()
        for refused in self._refused:
            fields = {**job_fields(refused.in_hand), "status": None}  # not yet the new one
            log.error(
                "%s stays claimed; a reap returns it to the queue", job_name(fields), extra=fields
            )
        self._refused = []
        return finished

    def _try(self) -> list[InHand[T]]:
        finishing = self.finishing()
        self._trying = True
        self.wait_for_renewal()
        try:
            finishing.run_once(self._refused)
            self._refused = finishing.left
        finally:
            self._trying = False
        return finishing.finished


Key = tuple[Any, ...]

#: The most rows of a queue that are passed over. If more cannot be claimed, the cause is no row.
MOST = 1_000

#: If so many rows are refused before one is good, the cause is no row.
HOPELESS = 100

#: A look that found nothing is repeated after so many times the time that it took: it may lock rows
#: and, on SQLite, keep other writers waiting.
REST = 20

#: For how long a row is passed over.
PASSED_OVER_FOR = timedelta(minutes=5)


def may_come_from_a_row(error: Exception) -> bool:
    """Tell whether a claim's error may come from one of its rows."""
    ours = isinstance(error, SQLAlchemyError | JobQueueError)
    is_of_application = not ours and not any(driver_errors(error))
    return is_of_application or (is_refusal(error) and not is_mistake(error))


@dataclass
class PassedOver(Generic[T]):
    """The rows that a worker passes over in each of its lanes.

    Attributes:
        owner_name: the name of the claims.
        options: the loader options of the claims.
    """

    owner_name: OwnerName
    options: Sequence[Any] = ()
    _until: dict[Lane[T], dict[Key, float]] = field(default_factory=dict)
    _logged: set[tuple[Lane[T], Key]] = field(default_factory=set)
    _next_look: dict[Lane[T], float] = field(default_factory=dict)  # by time.monotonic()
    # The queues without these rows: the statements of a queue are built once.
    _queues: dict[Lane[T], tuple[list[Key], JobQueue[T]]] = field(default_factory=dict)

    def queue_of(self, lane: Lane[T]) -> JobQueue[T]:
        """Return the queue to claim from: that of the lane, without the rows passed over."""
        keys = self._keys(lane) if self._until else []
        if not keys:
            return lane.queue
        known = self._queues.get(lane)
        if known is None or known[0] != keys:
            known = keys, _narrowed(lane.queue, not_(_named(lane.mapping, keys)))
            self._queues[lane] = known
        return known[1]

    def claim(self, session: Session, lane: Lane[T], limit: int) -> Claim[T]:
        """Claim up to `limit` jobs of a lane."""
        queue = self.queue_of(lane)
        if queue is lane.queue:
            return self._claim(queue, session, limit)
        with called_on(lane.queue):
            return self._claim(queue, session, limit)

    def find(self, session: Session, lane: Lane[T], wanted: int, error: Exception) -> int:
        """Look for rows that cannot be claimed, where the next claim of so many jobs looks.

        They are passed over from now on, and new ones are logged.

        Args:
            error: that of the claim.

        Returns:
            how many there are.
        """
        began = time.monotonic()
        if began < self._next_look.get(lane, 0.0):
            return 0
        with writing(session, lane.mapping, reads=True) as writer:
            keys = [tuple(row) for row in writer.rows(self._first_keys(lane, wanted)).all()]
        bad: dict[Key, Exception] = {}
        if not is_refusal(error):
            bad, _ = _tried(session, keys, partial(self._load, session, lane), wanted)
        if not bad:
            claim_one = partial(self._claim_one, session, lane)
            bad, good = _tried(session, keys, claim_one, wanted, hopeless=HOPELESS)
            if not good:  # what no row survives may be the fault of none
                known = [key for key in bad if (lane, key) in self._logged]
                unloaded, _ = _tried(session, [*bad], partial(self._load, session, lane), len(bad))
                bad = {key: bad[key] for key in (*known, *unloaded)}
        self._add(lane, bad)
        if not bad:
            now = time.monotonic()
            self._next_look[lane] = now + (now - began) * REST
        return len(bad)

    def _load(self, session: Session, lane: Lane[T], key: Key) -> bool:
        """Load a row; tell whether it is still there."""
        of_key = select(lane.mapping.entity).where(_named(lane.mapping, [key]))
        with writing(session, lane.mapping, reads=True) as writer:
            loaded = writer.orm(of_key.options(*self.options), populate_existing=True)
            return bool(loaded.unique().all())

    def _claim_one(self, session: Session, lane: Lane[T], key: Key) -> bool:
        """Claim a row; tell whether it was free to be claimed."""
        only = _narrowed(lane.queue, _named(lane.mapping, [key]))
        with called_on(lane.queue):
            return bool(self._claim(only, session, 1))

    def _claim(self, queue: JobQueue[T], session: Session, limit: int) -> Claim[T]:
        owner = self.owner_name.owner
        return queue.claim(session, owner=owner, limit=limit, options=self.options)

    def _first_keys(self, lane: Lane[T], wanted: int) -> Executable:
        """Select the keys of so many due jobs, and of those that may be passed over."""
        spec, mapping = self.queue_of(lane).plan.spec, lane.mapping
        may_overtake = not spec.limits and not spec.strict
        most = max(MOST - len(self._keys(lane)), 0) if may_overtake else 0
        due = [mapping.attribute("run_at") <= utc_now()] if mapping.has("run_at") else []
        return (
            select(*mapping.key_attributes)
            .where(mapping.has_status(spec.ready), *due, *spec.where)
            .order_by(*spec.order)
            .limit(most and most + wanted)
        )

    def _add(self, lane: Lane[T], bad: dict[Key, Exception]) -> None:
        """Pass over rows, and log those that are new."""
        until = time.monotonic() + PASSED_OVER_FOR.total_seconds()
        self._until.setdefault(lane, {}).update(dict.fromkeys(bad, until))
        new = [key for key in bad if (lane, key) not in self._logged]
        self._logged.update((lane, key) for key in new)
        if new:
            log_passed_over(lane.mapping, new, bad[new[0]], PASSED_OVER_FOR)

    def _keys(self, lane: Lane[T]) -> list[Key]:
        """Return the keys of the rows passed over; the time of a row may be over."""
        now, until = time.monotonic(), self._until.get(lane, {})
        for key in [key for key, end in until.items() if end <= now]:
            del until[key]
        return list(until)


def _tried(
    session: Session,
    keys: Sequence[Key],
    attempt: Callable[[Key], bool],
    wanted: int,
    *,
    hopeless: int | None = None,
) -> tuple[dict[Key, Exception], int]:
    """Try one row after the other, until so many are good, and undo what that has done.

    Args:
        hopeless: give up after so many errors, if no row was good.

    Returns:
        the errors of the others, and how many are good.
    """
    bad: dict[Key, Exception] = {}
    good = 0
    for key in keys:
        try:
            with session.begin_nested() as trial:
                good += attempt(key)
                trial.rollback()
        except Exception as error:
            if not may_come_from_a_row(error):
                raise
            bad[key] = error
        if good == wanted or (not good and len(bad) == hopeless):
            break
    return bad, good


def _narrowed(queue: JobQueue[T], criterion: ColumnElement[bool]) -> JobQueue[T]:
    narrowed, spec = copy_of(queue), queue.plan.spec
    narrowed.plan = queue.plan.for_spec(replace(spec, where=(*spec.where, criterion)))
    return narrowed


def _named(mapping: QueueMapping, keys: Sequence[Key]) -> ColumnElement[bool]:
    attributes = mapping.key_attributes
    if len(attributes) == 1:
        return attributes[0].in_([value for (value,) in keys])
    return tuple_(*attributes).in_(keys)
