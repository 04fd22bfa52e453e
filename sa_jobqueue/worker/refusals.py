"""The slow way after a refused turn: a job that cannot be finished holds up no other job.

A turn finishes its jobs and makes the next claim in one transaction. If the database refuses this
transaction with a permanent error, the error does not tell which job causes it. The handled jobs
are therefore finished without a claim, by halves, until the job is found that the database refuses.
This job is failed, with the reason. All other jobs are finished, and no job is handled again
because of another job's error. If the turn has waited in vain for a lock, jobs whose rows others
have locked are found first, by a read that skips locked rows, and left to the caller.

Before a job is failed, its error text is written in simpler forms: a column may be unable to store
an emoji. While the server is away or its disk is full, no job is the cause, and the finish waits.
If the database also refuses to fail a job, the job is left to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from ..dialects import is_shortage
from ..model.columns import error_text, in_ascii
from .in_hand import InHand
from .lanes import claims_lost_by
from .locked_rows import jobs_of_locked_rows
from .log_records import log_lost, log_refused
from .outcomes import Cancel, Failed, Outcome, Retry
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
        if isinstance(given, Retry | Cancel | Failed):
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
