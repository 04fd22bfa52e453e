"""A claimed job on its way through a worker, and its log records, which name the job.

::

    Email 7 sent, attempt 1 of 20, after 0.12 s
    Email 8 failed, attempt 3 of 20, after 0.12 s; next try in 3.9 s: OSError: no route

The parts are extra fields of the record, for JSON logs. A failure is logged with its traceback when
the handler has raised: as an error if the job is not tried again, else as a warning. All other
outcomes are logged at level INFO after the commit of the finish. If this level is off, a turn
checks it once.

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
from math import inf
from random import shuffle
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from ..ages import duration_text
from ..fence.claim import Claim, fence_of, jobs_by_token
from ..fence.statements import lock_unlocked
from ..fence.token import Fence
from ..model.mapping import word_of
from ..model.status import CANCELLED, FAILED
from ..sessions.writer import writing
from .lanes import NOT_YET, Cancel, Failed, Lane, Release, Retry, branch_of

log = logging.getLogger("sa_jobqueue.worker")


class Ended(Enum):
    """How a job ended before its finish was written."""

    FINISHED = auto()
    LOST = auto()


@dataclass(eq=False, slots=True)
class InHand:
    """A claimed job with its lane; once it was handled, also with its outcome.

    Attributes:
        claim: the claim that it belongs to, perhaps with other jobs.
        attempts: as the claim wrote them, if the delay depends on them. They are kept here
            because a handler may leave its job expired, and then nothing can be read from it.
        loop: the loop of turns that has claimed it.
        outcome: an Outcome; NOT_YET until its handler has returned or raised.
        ended: its handler's own transaction has finished the job, or its claim was found lost:
            nothing is left to write.
        began: when its handler began, by time.monotonic().
        duration: for how many seconds its handler ran, until its end or until it was given up.
        locked: its handler's own transaction holds the lock of its row, which replaces the lease.
        given_up: why the worker no longer waits for its handler, and ignores its result.
        asked_to_stop: somebody wants this handler to end early.
        moved: its handler has written a status to it, or has left it expired.
        refused: why it could be neither finished nor failed; None: nobody has tried in vain.
    """

    lane: Lane[Any]
    job: Any
    claim: Claim[Any] | None = None
    attempts: int | None = None
    loop: Any = field(default=None, init=False)
    outcome: Any = field(default=NOT_YET, init=False)
    ended: Ended | None = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    duration: float = field(default=0.0, init=False)
    locked: bool = field(default=False, init=False)
    given_up: BaseException | None = field(default=None, init=False)
    asked_to_stop: bool = field(default=False, init=False)
    moved: bool = field(default=False, init=False)
    refused: Any = field(default=None, init=False)

    @property
    def fence(self) -> Fence:
        """The fence of its claim."""
        return fence_of(self.job)

    @property
    def deadline(self) -> float:
        """When its handler has to have ended, by time.monotonic(); infinity: it has no timeout."""
        timeout = self.lane.timeout
        return inf if timeout is None else self.began + timeout.total_seconds()


#: The jobs that one call of a handler gets: one job, or a batch.
Call: TypeAlias = tuple[InHand, ...]

#: From this attempt on, a job is alone in its batch: two batches with it have failed.
ALONE_FROM = 3


def calls_for(lane: Lane[Any], claim: Claim[Any]) -> list[Call]:
    """Divide the jobs of a claim into calls of their handlers."""
    key = lane.mapping.attributes.get("attempts")  # None without RetryMixin
    jobs = [
        InHand(lane.part_of(job), job, claim, None if key is None else getattr(job, key))
        for job in claim
    ]
    if lane.batch is None:
        return [(each,) for each in jobs]
    alone = [each for each in jobs if _is_alone(each)]
    shuffle(alone)  # if one ends this process, it is another time behind those that it has met
    others = [each for each in jobs if each not in alone] if alone else jobs
    starts = range(0, len(others), lane.batch)
    batches = [tuple(others[begin : begin + lane.batch]) for begin in starts]
    return batches + [(each,) for each in alone]


def _is_alone(in_hand: InHand) -> bool:
    """Tell whether a job may be what its batches have failed of, or has its last chance."""
    attempts = in_hand.attempts or 1
    return attempts >= ALONE_FROM or 1 < attempts == max_attempts_of(in_hand)


def max_attempts_of(in_hand: InHand) -> int | None:
    """Return how often a job is tried; None: no limit, or its handler has expired it."""
    attributes = in_hand.lane.mapping.attributes
    most: int | None = vars(in_hand.job).get(attributes.get("max_attempts"))
    return most


#: How many jobs a record names before it says "and 12 more".
NAMED = 10


def log_end(write: Any, in_hand: InHand, what: str | None, why: object, **options: Any) -> None:
    """Log the end of an attempt; `what` becomes of the job, None: its new status."""
    fields = job_fields(in_hand)
    wait, most = fields["next_try_in"], fields["max_attempts"]
    text = f"{job_name(fields)} {what or fields['status']}"
    if in_hand.attempts is not None:
        text += f", attempt {in_hand.attempts}" + ("" if most is None else f" of {most}")
    text += f", after {duration_text(in_hand.duration)}"
    if isinstance(in_hand.outcome, Retry | Failed):
        text += "; not tried again" if wait is None else f"; next try in {duration_text(wait)}"
    if why is not None:
        text += f": {why}"
    write = write or (log.error if wait is None else log.warning)
    write("%s", text, extra=fields, **options)


def log_finished(finished: Sequence[InHand]) -> None:
    """Log the outcomes of jobs after the commit; failures were logged before."""
    if not log.isEnabledFor(logging.INFO):
        return
    for in_hand in finished:
        outcome = in_hand.outcome
        if not isinstance(outcome, Failed):
            what = {Retry: "wants a retry", Release: "is given back"}.get(type(outcome))
            log_end(log.info, in_hand, what, getattr(outcome, "reason", None))


def log_lost(lost: Iterable[InHand]) -> None:
    """Log that the claims of jobs are gone: their new owners finish them, or we have."""
    for in_hand in lost:
        text = (
            "can no longer be finished: its claim was lost to a reap, another owner, a release or "
            "a finish, perhaps our own, if the answer to its COMMIT was lost"
        )
        # The new owner reports the outcome.
        log_job(log.warning, in_hand, text, status=None, next_try_in=None)


def log_job(write: Any, in_hand: InHand, what: str, **changed: Any) -> None:
    """Log what becomes of a job; `changed` are fields that differ from those of its outcome."""
    fields = job_fields(in_hand) | changed
    write("%s %s", job_name(fields), what, extra=fields)


def log_unreleased(jobs: Sequence[InHand], cause: object) -> None:
    """Log that jobs could not be given back, and stay claimed."""
    log.error(
        "%s could not be released; a reap returns the jobs to the queue: %s",
        several([job_name(job_fields(in_hand)) for in_hand in jobs]),
        cause,
    )


def several(names: Sequence[str]) -> str:
    """Name the first of several jobs, and count the rest."""
    named = ", ".join(names[:NAMED])
    return f"{named} and {len(names) - NAMED:,} more" if len(names) > NAMED else named


def job_fields(in_hand: InHand) -> dict[str, Any]:
    """Return the extra fields of a record, the times in seconds."""
    queue, mapping, outcome = in_hand.lane.queue, in_hand.lane.mapping, in_hand.outcome
    most = max_attempts_of(in_hand)
    wait: timedelta | None = None
    match outcome:
        case Cancel():
            status = mapping.word(CANCELLED)
        case Release():
            status = queue.ready
        case Retry(in_=wait) | Failed(retry_in=wait):
            if most is not None and in_hand.attempts is not None and in_hand.attempts >= most:
                wait = None
            status = mapping.word(FAILED) if wait is None else queue.ready
        case _:
            done = outcome is not NOT_YET
            then = branch_of(outcome) or queue.then if done else in_hand.fence.token.status
            status = word_of(mapping, then)
    runs = outcome is NOT_YET and in_hand.began
    text = mapping.text_of(vars(in_hand.job))
    return {
        **({} if text is None else {"job_text": text}),
        "job_class": str(mapping),
        "job_key": in_hand.fence.identity,
        "queue": repr(queue),
        "status": status,
        "attempt": in_hand.attempts,
        "max_attempts": most,
        "next_try_in": None if wait is None else wait.total_seconds(),
        "duration": time.monotonic() - in_hand.began if runs else in_hand.duration,
    }


def job_name(fields: dict[str, Any]) -> str:
    text = f": {fields['job_text']}" if "job_text" in fields else ""
    return f"{fields['job_class']} {', '.join(map(repr, fields['job_key']))}{text}"


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
            can_skip = writer.database.skip_locked
            ours, gone = lock_unlocked(writer, part) if can_skip else ([*part.fences], [])
        free += ours
        lost += gone
    return free, lost


def jobs_of_locked_rows(session: Session, jobs: Sequence[InHand]) -> list[InHand]:
    """Return the jobs whose rows others have locked."""
    free, lost = lock_free_rows(session, [in_hand.fence for in_hand in jobs])
    others = {*free, *lost}
    return [in_hand for in_hand in jobs if in_hand.fence not in others]
