"""A claimed job on its way through a worker, and what a turn does with several of them.

Each attempt has a log record, which names the job::

    Email 7 sent, attempt 1 of 20, after 0.12 s
    Email 8 failed, attempt 3 of 20, after 0.12 s; next try in 3.9 s: OSError: no route

The parts are extra fields of the record, for JSON logs. A failure is logged with its traceback when
the handler has raised: as an error if the job is not tried again, else as a warning. All other
outcomes are logged at level INFO after the commit of
the finish. If this level is off, a turn checks it once.

The worker asks which rows somebody else has locked, and waits for none: each wait takes as long as
the lock timeout, and holds up all other jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from ..ages import duration_text
from ..fence.claim import Claim, fence_of, jobs_by_token
from ..fence.statements import lock_unlocked
from ..fence.token import Fence
from ..model.columns import first_line
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, FAILED
from ..process import function_name
from ..sessions.writer import writing
from .lanes import (
    NOT_YET,
    Cancel,
    Failed,
    Lane,
    NotDone,
    NotYet,
    Outcome,
    Release,
    Retry,
    branch_of,
)

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


class Ended(Enum):
    """How a job ended in its handler's transaction."""

    FINISHED = auto()
    LOST = auto()


@dataclass(eq=False, slots=True)
class InHand(Generic[T]):
    """A claimed job with its lane; once it was handled, also with its outcome.

    Attributes:
        claim: the claim that it belongs to, perhaps with other jobs.
        attempts: as the claim wrote them, if the delay depends on them. They are kept here
            because a handler may leave its job expired, and then nothing can be read from it.
        outcome: NOT_YET until its handler has returned or raised; until then, it is not finished.
        ended: its handler's own transaction has finished the job, or has found its claim lost:
            nothing is left to write.
        began: when its handler began, by time.monotonic().
        duration: for how many seconds its handler ran, until its end or until it was given up.
        locked: its handler's own transaction holds the lock of its row, which replaces the lease.
        lost: a renewal has found that the claim was lost.
        given_up: why the worker no longer waits for its handler, and ignores its result.
        asked_to_stop: somebody wants this handler to end early.
        may_be_finished: a transaction that finishes it has come to its COMMIT; if the answer was
            lost, nobody knows whether it has succeeded.
    """

    lane: Lane[T]
    job: T
    claim: Claim[T] | None = None
    attempts: int | None = None
    outcome: Outcome | NotYet = field(default=NOT_YET, init=False)
    ended: Ended | None = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    duration: float = field(default=0.0, init=False)
    locked: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)
    given_up: BaseException | None = field(default=None, init=False)
    asked_to_stop: bool = field(default=False, init=False)
    may_be_finished: bool = field(default=False, init=False)

    @property
    def fence(self) -> Fence:
        """The fence of its claim."""
        return fence_of(self.job)

    @property
    def known_outcome(self) -> Outcome:
        """Its outcome, once it was handled."""
        assert self.outcome is not NOT_YET, f"{self.fence!r} was not handled yet"
        return self.outcome

    @property
    def deadline(self) -> float | None:
        """When its handler has to have ended, by time.monotonic(); None: it has no timeout."""
        timeout = self.lane.timeout
        return None if timeout is None else self.began + timeout.total_seconds()


@dataclass
class Batch(Generic[T]):
    """What one turn is to do.

    Attributes:
        handled: jobs to finish.
        unhandled: jobs to release.
        wanted: the most jobs to claim; 0: none.
    """

    handled: Sequence[InHand[T]] = ()
    unhandled: Sequence[InHand[T]] = ()
    wanted: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no job is to be finished or released."""
        return not self.handled and not self.unhandled


#: How many jobs a record names before it says "and 12 more".
NAMED = 10

LOST = (
    "its claim was lost to a finish, a release, a reap or another owner; nothing was written to "
    "its row"
)

MAYBE_OURS = (
    "its claim is gone: either an earlier try of this worker has finished it, and the answer to "
    "the COMMIT was lost; or its claim was lost to a finish, a release, a reap or another owner"
)


def log_failure(in_hand: InHand[Any], error: BaseException, retry_in: timedelta | None) -> None:
    """Log that an attempt at a job has failed.

    Args:
        retry_in: the delay before the next attempt, if one remains.
    """
    fields = job_fields(in_hand, _seconds_to_next_try(in_hand, retry_in))
    text = f"{_text('failed', fields)}; {_next_try(fields)}"
    write = log.error if fields["next_try_in"] is None else log.warning
    write("%s: %s", text, first_line(error), exc_info=error, extra=fields)


def log_overdue(in_hand: InHand[Any], grace: timedelta, fate: str) -> None:
    """Log that a handler still runs after the grace of a stop, and what becomes of its job."""
    fields = job_fields(in_hand)
    log.error(
        "%s still runs %s after the worker was asked to stop: %s. The handler is %s",
        job_name(fields),
        duration_text(grace),
        fate,
        function_name(in_hand.lane.handler),
        extra=fields,
    )


def log_lost(lost: Iterable[InHand[Any]]) -> None:
    """Log that the claims of jobs are gone: their new owners finish them, or we have."""
    for in_hand in lost:
        fields = {**job_fields(in_hand), "status": None}  # the new owner reports the outcome
        text = MAYBE_OURS if in_hand.may_be_finished else LOST
        log.warning("%s: %s", job_name(fields), text, extra=fields)


def log_refused(in_hand: InHand[Any], cause: object, outcome: Outcome) -> None:
    """Log that the database refuses to finish a job, and that its attempt has failed instead."""
    delay = outcome.retry_in if isinstance(outcome, Failed) else None
    fields = job_fields(in_hand, _seconds_to_next_try(in_hand, delay))
    text = f"{_text('cannot be finished, and its attempt fails', fields)}; {_next_try(fields)}"
    log.error("%s: %s", text, cause, extra=fields)


def log_unreleased(jobs: Sequence[InHand[Any]], cause: object) -> None:
    """Log that jobs could not be given back, and stay claimed."""
    names = ", ".join(job_name(job_fields(in_hand)) for in_hand in jobs[:NAMED])
    log.error(
        "%s%s could not be released; a reap returns the jobs to the queue: %s",
        names,
        f" and {len(jobs) - NAMED:,} more" if len(jobs) > NAMED else "",
        cause,
    )


def log_passed_over(
    mapping: QueueMapping, keys: Sequence[tuple[Any, ...]], error: Exception, pause: timedelta
) -> None:
    """Log that rows cannot be claimed, with the error of the first."""
    names = ", ".join(" ".join(map(str, key)) for key in keys[:NAMED])
    log.error(
        "%s %s%s cannot be claimed. The worker goes on with other jobs, and tries again in %s: %s",
        mapping,
        names,
        f" and {len(keys) - NAMED:,} more" if len(keys) > NAMED else "",
        duration_text(pause),
        error,
        exc_info=error,
    )


def log_finished(finished: Sequence[InHand[Any]]) -> None:
    """Log the outcomes of jobs after the commit; failures were logged before."""
    if not log.isEnabledFor(logging.INFO):
        return
    for in_hand in finished:
        if not isinstance(in_hand.outcome, Failed):
            _log_finish(in_hand)


def _log_finish(in_hand: InHand[Any]) -> None:
    outcome = in_hand.outcome
    if isinstance(outcome, Retry):
        fields = job_fields(in_hand, _seconds_to_next_try(in_hand, outcome.in_))
        text = f"{_text('wants a retry', fields)}; {_next_try(fields)}"
    elif isinstance(outcome, Release):
        fields = job_fields(in_hand)
        text = _text("is given back", fields)
    else:
        fields = job_fields(in_hand)
        text = _text(fields["status"], fields)
    reason = outcome.reason if isinstance(outcome, NotDone) else None
    log.info("%s", text if reason is None else f"{text}: {reason}", extra=fields)


def job_fields(in_hand: InHand[Any], next_try_in: float | None = None) -> dict[str, Any]:
    """Return the extra fields of a record, the times in seconds."""
    queue = in_hand.lane.queue
    return {
        "job_class": str(queue.mapping),
        "job_key": in_hand.fence.identity,
        "queue": repr(queue),
        "status": _status(in_hand, next_try_in),
        "attempt": in_hand.attempts,
        "max_attempts": _most_attempts(in_hand),
        "next_try_in": next_try_in,
        "duration": _duration(in_hand),
    }


def _duration(in_hand: InHand[Any]) -> float:
    """Return for how many seconds the job's handler ran, or has run until now."""
    if isinstance(in_hand.outcome, NotYet) and in_hand.began:
        return time.monotonic() - in_hand.began
    return in_hand.duration


def _status(in_hand: InHand[Any], next_try_in: float | None) -> str:
    """Return the status of the job after its finish, in the table's own word."""
    queue, outcome = in_hand.lane.queue, in_hand.outcome
    if isinstance(outcome, Cancel):
        return queue.mapping.word(CANCELLED)
    if isinstance(outcome, NotYet):
        return word_of(queue.mapping, in_hand.fence.token.status)
    if isinstance(outcome, Release):
        return queue.ready
    if isinstance(outcome, Retry | Failed):
        return queue.ready if next_try_in is not None else queue.mapping.word(FAILED)
    return word_of(queue.mapping, branch_of(outcome) or queue.then)


def _seconds_to_next_try(in_hand: InHand[Any], delay: timedelta | None) -> float | None:
    """Return the delay of a job in seconds; None: it is not tried again."""
    most = _most_attempts(in_hand)
    is_last = most is not None and in_hand.attempts is not None and in_hand.attempts >= most
    return None if is_last or delay is None else delay.total_seconds()


def _most_attempts(in_hand: InHand[Any]) -> int | None:
    """Return max_attempts as the claim read it; None: no limit, or the handler expired the job."""
    key = in_hand.lane.queue.mapping.attributes.get("max_attempts")
    most: int | None = None if key is None else vars(in_hand.job).get(key)
    return most


def job_name(fields: dict[str, Any]) -> str:
    return f"{fields['job_class']} {', '.join(map(repr, fields['job_key']))}"


def _text(what: str, fields: dict[str, Any]) -> str:
    most = "" if fields["max_attempts"] is None else f" of {fields['max_attempts']}"
    attempt = "" if fields["attempt"] is None else f", attempt {fields['attempt']}{most}"
    return f"{job_name(fields)} {what}{attempt}, after {duration_text(fields['duration'])}"


def _next_try(fields: dict[str, Any]) -> str:
    wait = fields["next_try_in"]
    return "not tried again" if wait is None else f"next try in {duration_text(wait)}"


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
