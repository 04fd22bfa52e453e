"""The worker: claim, handle, finish in the same turn as the next claim.

::

    def send(email: Email) -> None: ...

    Worker(engine, JobQueue(Email), send, limit=10).run()

A handler gets the job detached from its session: what it writes, it writes in
a session of its own. It returns None when the job is done, or says what it
wants instead: :class:`Retry` or :class:`Cancel`. A handler that raises fails
its own job and no other.

The worker owns its transactions, so it runs them again after a deadlock, a
busy database or a lost connection; a job that was handled is then finished,
not handled again. Each transaction finishes what was handled and claims what
is next.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import Engine, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .claiming import Claim
from .clock import utc_now
from .dialects import database_of, is_transient
from .errors import ArgumentError, ClaimLost
from .finishing import give_up
from .queue import JobQueue

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")
R = TypeVar("R")

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)
LONGEST_RETRY = timedelta(hours=1)

#: How often a transaction is run again before its error comes out.
TRANSACTION_TRIES = 10


@dataclass(frozen=True)
class Retry:
    """What a handler returns to have its job tried again.

    Attributes:
        in_: how long to wait; None waits as after a failure.
        reason: goes to ``last_error``.
    """

    in_: timedelta | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Cancel:
    """What a handler returns to have its job cancelled; the reason goes to ``last_error``."""

    reason: str | None = None


@dataclass(frozen=True)
class Failed:
    """What became of a job whose handler raised."""

    error: Exception


Outcome: TypeAlias = "Retry | Cancel | Failed | None"


def backoff(attempts: int) -> timedelta:
    """Wait 1, 2, 4, .. seconds after the first, second, third attempt, at most an hour.

    A tenth more or less, so that jobs that failed together do not come back together.
    """
    seconds = min(2.0 ** max(attempts - 1, 0), LONGEST_RETRY.total_seconds())
    return timedelta(seconds=seconds * random.uniform(0.9, 1.1))


def default_owner() -> str:
    """Name this process: its host, its process id and something random."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{random.getrandbits(32):08x}"


class Worker(Generic[T]):
    """A loop over one queue.

    Args:
        engine: the worker opens its own sessions on it.
        queue: what is claimed.
        handler: called with each job; returns None, a Retry or a Cancel.
        owner: 1 to 64 characters; by default made of host, process id and
            something random.
        limit: jobs claimed at once.
        delete: whether done jobs are deleted; None goes by the model.
        drain: stop when nothing is unclaimed, waiting for its own retry, or
            held by this worker. Jobs scheduled for later that were never tried
            are left for another run.
        interval: a pause between turns, for gentle use.
        poll: the longest pause of an idle worker.
        retry_in: the pause after a failed attempt, from the number of
            attempts; used where the model has ScheduleMixin.
        on_claim: called with each claim, after its commit.
        on_outcome: called with each job and what became of it, after the
            commit of its finish; not with those whose claim was lost.
        options: loader options for the claims; jobs are detached, so what a
            handler reads of their relationships is loaded here.
    """

    def __init__(
        self,
        engine: Engine,
        queue: JobQueue[T],
        handler: Callable[[T], Retry | Cancel | None],
        *,
        owner: str | int | None = None,
        limit: int = 1,
        delete: bool | None = None,
        drain: bool = False,
        interval: timedelta = timedelta(0),
        poll: timedelta = LONGEST_POLL,
        retry_in: Callable[[int], timedelta] = backoff,
        on_claim: Callable[[Claim[T]], None] | None = None,
        on_outcome: Callable[[T, Outcome], None] | None = None,
        options: Sequence[Any] = (),
    ) -> None:
        if queue.plan.strategy == "held":
            raise ArgumentError(
                "a worker commits between claim and finish, and a held claim ends with its "
                "transaction; use another strategy"
            )
        self.engine = engine
        self.queue = queue
        self.handler = handler
        self.owner = default_owner() if owner is None else owner
        self.limit = limit
        self.delete = delete
        self.drain = drain
        self.interval = interval
        self.poll = poll
        self.retry_in = retry_in
        self.on_claim = on_claim
        self.on_outcome = on_outcome
        self.options = options
        self._stopping = threading.Event()

    # -- the loop -------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        Raises:
            DBAPIError: an error of the engine that trying again did not mend.
        """
        handled: list[tuple[T, Outcome]] = []
        unhandled: list[T] = []
        idle = 0
        while True:
            stopping = self._stopping.is_set()
            claimed, finished = self._turn(handled, unhandled, claim=not stopping)
            self._tell(finished, claimed)
            if stopping:
                return
            if not claimed and self.drain and self._drained():
                return
            idle = 0 if claimed else idle + 1
            handled, unhandled = self._handle_all(claimed)
            self._pause(idle)

    def stop(self) -> None:
        """Finish the running job, release the rest, and return from :meth:`run`.

        Safe to call from a signal handler or another thread.
        """
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping.is_set()

    @contextmanager
    def stopping_on_signals(self, *signals: signal.Signals) -> Iterator[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        chosen = signals or (signal.SIGTERM, signal.SIGINT)

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, stop) for number in chosen}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- one turn -------------------------------------------------------

    def _turn(
        self, handled: list[tuple[T, Outcome]], unhandled: list[T], *, claim: bool
    ) -> tuple[Claim[T], list[tuple[T, Outcome]]]:
        """Finish what was handled, release what was not, claim what is next.

        Returns the claim, and what was finished: without those that were lost.
        """

        def turn(session: Session) -> tuple[Claim[T], list[tuple[T, Outcome]]]:
            lost = self._finish(session, handled)
            _lost_of(lambda: self.queue.release(session, unhandled))
            finished = [pair for pair in handled if not any(pair[0] is job for job in lost)]
            if not claim:
                return Claim([], []), finished
            claimed = self.queue.claim(
                session, owner=self.owner, limit=self.limit, options=self.options
            )
            return claimed, finished

        return self._in_transaction(turn)

    def _finish(self, session: Session, handled: list[tuple[T, Outcome]]) -> list[Any]:
        """Write what became of the jobs; return those whose claim was lost."""
        done = [job for job, outcome in handled if outcome is None]
        lost = _lost_of(lambda: self.queue.complete(session, done, delete=self.delete))
        for job, outcome in handled:
            if outcome is not None:
                lost += _lost_of(partial(self._finish_otherwise, session, job, outcome))
        return lost

    def _finish_otherwise(self, session: Session, job: T, outcome: Retry | Cancel | Failed) -> None:
        if isinstance(outcome, Cancel):
            give_up(session, job, reason=outcome.reason)
        else:
            self._fail(session, job, outcome)

    def _fail(self, session: Session, job: T, outcome: Failed | Retry) -> None:
        error = outcome.error if isinstance(outcome, Failed) else outcome.reason
        self.queue.fail(session, job, error=error, retry_in=self._retry_in(job, outcome))

    def _retry_in(self, job: T, outcome: Failed | Retry) -> timedelta | None:
        if isinstance(outcome, Retry) and outcome.in_ is not None:
            return outcome.in_
        mapping = self.queue.mapping
        if not (mapping.has("run_at") and mapping.has("attempts")):
            return None
        return self.retry_in(getattr(job, mapping.attributes["attempts"]))

    # -- the jobs -------------------------------------------------------

    def _handle_all(self, claimed: Claim[T]) -> tuple[list[tuple[T, Outcome]], list[T]]:
        """Handle jobs until told to stop; return those handled, and the rest."""
        handled: list[tuple[T, Outcome]] = []
        for place, job in enumerate(claimed):
            if self._stopping.is_set():
                return handled, list(claimed[place:])
            handled.append((job, self._handle(job)))
        return handled, []

    def _handle(self, job: T) -> Outcome:
        try:
            outcome = self.handler(job)
            self._check_outcome(outcome)
        except Exception as error:  # the one catch-all: a handler fails its own job only
            log.warning("handler failed: %r", error, exc_info=error)
            return Failed(error)
        return outcome

    def _check_outcome(self, outcome: Any) -> None:
        if outcome is not None and not isinstance(outcome, Retry | Cancel):
            raise ArgumentError(f"a handler returns None, Retry(..) or Cancel(..), not {outcome!r}")
        mapping = self.queue.mapping
        if isinstance(outcome, Retry) and not mapping.has("attempts"):
            raise ArgumentError(f"Retry needs RetryMixin on {mapping}")
        if isinstance(outcome, Retry) and outcome.in_ is not None and not mapping.has("run_at"):
            raise ArgumentError(f"Retry(in_=) needs ScheduleMixin on {mapping}")

    def _tell(self, handled: list[tuple[T, Outcome]], claimed: Claim[T]) -> None:
        if self.on_outcome is not None:
            for job, outcome in handled:
                self.on_outcome(job, outcome)
        if self.on_claim is not None and (claimed or claimed.lost):
            self.on_claim(claimed)

    # -- waiting --------------------------------------------------------

    def _pause(self, idle: int) -> None:
        pause = self.interval.total_seconds()
        if idle:
            longest = self.poll.total_seconds()
            shortest = min(SHORTEST_POLL.total_seconds(), longest)
            poll = min(shortest * 2 ** min(idle - 1, 20), longest)
            pause = max(pause, poll * random.uniform(0.5, 1.0))
        if pause:
            self._stopping.wait(pause)

    def _drained(self) -> bool:
        """Tell whether nothing is left that this run should wait for."""
        mapping = self.queue.mapping
        waits = mapping.has_status(self.queue.ready)
        left = select(*mapping.key_attributes).where(waits, *self.queue.plan.spec.where)
        if mapping.has("run_at"):
            due = mapping.attribute("run_at") <= utc_now()
            tried = mapping.attribute("attempts") > 0 if mapping.has("attempts") else None
            left = left.where(due if tried is None else or_(due, tried))
        return self._in_transaction(lambda session: session.execute(left.limit(1)).first()) is None

    # -- transactions ---------------------------------------------------

    def _in_transaction(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction, again if its error is transient."""
        tries = 1
        while True:
            try:
                return self._one_transaction(work)
            except DBAPIError as error:
                if tries == TRANSACTION_TRIES or not _worth_another_try(error):
                    raise
                log.info("try %d of %d failed: %s", tries, TRANSACTION_TRIES, error.orig)
            self._stopping.wait(0.05 * 2 ** min(tries, 6) * random.uniform(0.5, 1.0))
            tries += 1

    def _one_transaction(self, work: Callable[[Session], R]) -> R:
        with Session(self.engine, expire_on_commit=False) as session:
            try:
                connection = session.connection()
                database = database_of(connection)
                if not database.in_autocommit(connection):
                    database.begin_write(connection)
                result = work(session)
                session.commit()
            except BaseException:
                # Said outright: after a COMMIT that failed, close() alone leaves
                # the transaction open on the pooled connection.
                session.rollback()
                raise
            return result


def _lost_of(finish: Callable[[], None]) -> list[Any]:
    """Go on when claims were lost, and return them: their new owners finish them."""
    try:
        finish()
    except ClaimLost as lost:
        log.warning("%s", lost)
        return list(lost.lost)
    return []


def _worth_another_try(error: DBAPIError) -> bool:
    return is_transient(error) or error.connection_invalidated
