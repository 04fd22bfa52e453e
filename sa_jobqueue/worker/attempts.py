"""Attempts: call a job's handler, and note the job's outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..process import Flag
from .calls import Calls
from .detached import log_changes
from .events import tell_start
from .in_hand import InHand
from .job_context import set_job_context
from .log_records import log_failure
from .outcomes import Cancel, Failed, Finished, Retry
from .transactional import HandlersTransaction
from .transactions import Transactions

T = TypeVar("T")


class Renewals(Protocol):
    """The heartbeat, which renews the claims of a worker."""

    def wait_for_renewal(self) -> None: ...


@dataclass
class Attempts(Generic[T]):
    """The attempts of a worker.

    Attributes:
        stopping: set when the worker is to stop.
        delete: whether done jobs are deleted; None: as the model says.
        options: loader options for the jobs of transactional handlers.
        delay: returns how long a failed job waits.
    """

    calls: Calls
    transactions: Transactions
    heartbeat: Renewals
    stopping: Flag
    delete: bool | None
    options: Sequence[Any]
    delay: Callable[[InHand[T]], timedelta | None]

    def make(self, in_hand: InHand[T]) -> None:
        """Call the handler of a job, and note the outcome.

        Raises:
            BaseException: what the handler raised that is no Exception; the attempt has failed.
                If the worker has interrupted the handler, there was no attempt.
        """
        lane = in_hand.lane
        try:
            context = self.begin(in_hand)
            if lane.transactional:
                outcome = self._outcome_in_transaction(in_hand, context)
            else:
                try:
                    returned = self.calls.call(in_hand, context)
                finally:
                    if instance_state(in_hand.job).modified:
                        log_changes(in_hand)
                outcome = None if returned is None else lane.outcome_of(returned)
        except BaseException as raised:  # the only catch-all: a handler fails no job but its own
            self.note_error(in_hand, raised)
        else:
            self.note_outcome(in_hand, outcome)

    def note_outcome(self, in_hand: InHand[T], outcome: Finished | Retry | Cancel) -> None:
        """Note the outcome of an attempt whose handler has returned."""
        in_hand.duration = time.monotonic() - in_hand.began
        if outcome is not None and isinstance(outcome, Retry) and outcome.in_ is None:
            outcome = replace(outcome, in_=self.delay(in_hand))
        in_hand.outcome = outcome

    def note_error(self, in_hand: InHand[T], raised: BaseException) -> None:
        """Note the failure of an attempt whose handler has raised an exception.

        Raises:
            BaseException: the exception, if it is no Exception.
        """
        # A handler that was given up failed at that moment, whatever it raises afterwards.
        error = in_hand.given_up or raised
        if error is not raised:
            error.__context__ = raised  # the log shows both
        if not self.calls.was_interrupted(error):
            self.fail(in_hand, error)
        if not isinstance(error, Exception):
            raise error

    def fail(self, in_hand: InHand[T], error: BaseException) -> None:
        """Note that an attempt has failed, and log it."""
        in_hand.duration = time.monotonic() - in_hand.began
        in_hand.outcome = Failed(error, self.delay(in_hand))
        log_failure(in_hand, error, in_hand.outcome.retry_in)

    def begin(self, in_hand: InHand[T]) -> Context:
        """Begin an attempt; return the context for its handler.

        It is a copy of ours: the next handler does not see what this one changes in it.
        """
        context = copy_context()
        context.run(set_job_context, (in_hand, self.stopping))
        if in_hand.lane.mapping.listeners and not in_hand.lane.transactional:
            context.run(tell_start, in_hand)
        return context

    def _outcome_in_transaction(
        self, in_hand: InHand[T], context: Context
    ) -> Finished | Retry | Cancel:
        """Call a transactional handler: its row is locked, so its claim is not renewed."""
        in_hand.locked = True
        self.heartbeat.wait_for_renewal()
        begun = False

        def call(session: Session, job: Any) -> Any:
            nonlocal begun
            if in_hand.lane.mapping.listeners and not begun:  # the claim is not lost
                context.run(tell_start, in_hand)
            begun = True
            return self.calls.call_in(session, in_hand, context, job)

        try:
            return HandlersTransaction(
                self.transactions, in_hand, self.calls.open_session, call, self.delete, self.options
            ).run()
        finally:
            in_hand.locked = in_hand.ended is not None  # else its outcome is still to be written
