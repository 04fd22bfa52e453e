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

It claims as an Owner, whose death others notice; it renews its claims for as
long as their jobs are in hand, and now and then takes back those of the dead.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import Engine, or_, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from .clock import utc_now
from .dialects import database_of, is_transient
from .errors import ArgumentError, ClaimLost, LockLost, LockTimeout, UnsupportedDatabase
from .fencing import Claim, fence_of, fenced
from .finishing import give_up
from .heartbeat import Heartbeat
from .owners import Owner
from .queue import JobQueue
from .reaping import Reaped
from .strategies import AUTO, STRATEGIES
from .transactions import committed
from .waiting import THREADS, Waiting

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")
R = TypeVar("R")

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)
LONGEST_RETRY = timedelta(hours=1)

#: How often a worker looks for claims to take back, a fifth more or less.
REAP_EVERY = timedelta(seconds=10)

#: How long a transaction is run again, after the first success, before its error
#: comes out: a restart of the server is waited for.
PATIENCE = timedelta(minutes=5)

#: The longest wait that a handler may ask for.
LONGEST_WAIT = timedelta(days=3650)


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
    """What became of a job whose handler raised.

    Attributes:
        error: what it raised.
        retry_in: how long the job waits for its next attempt, if it has one.
    """

    error: Exception
    retry_in: timedelta | None = None


Outcome: TypeAlias = "Retry | Cancel | Failed | None"


@dataclass
class Batch(Generic[T]):
    """One claim on its way: jobs handled, with what became of them, and jobs waiting."""

    waiting: list[T] = field(default_factory=list)
    handled: list[tuple[T, Outcome]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand."""
        return not self.waiting and not self.handled

    def __iter__(self) -> Iterator[T]:
        yield from (job for job, _ in self.handled)
        yield from self.waiting

    @contextmanager
    def next(self) -> Iterator[T]:
        """Take the next job in hand; one that is broken off waits again."""
        job = self.waiting.pop(0)
        try:
            yield job
        except BaseException:
            self.waiting.insert(0, job)
            raise


def backoff(attempts: int) -> timedelta:
    """Wait 1, 2, 4, .. seconds after the first, second, third attempt, at most an hour.

    A tenth more or less, so that jobs that failed together do not come back together.
    """
    seconds = min(2.0 ** min(max(attempts - 1, 0), 20), LONGEST_RETRY.total_seconds())
    return timedelta(seconds=seconds * random.uniform(0.9, 1.1))


def default_owner() -> str:
    """Name this process: its host, its process id and something random."""
    return f"{process_label(40)}-{random.getrandbits(32):08x}"


def process_label(host: int) -> str:
    """Name this process by its host, so many characters of it, and its process id."""
    return f"{socket.gethostname().replace('~', '-')[:host]}-{os.getpid()}"


class Worker(Generic[T]):
    """A loop over one queue.

    Args:
        engine: the worker opens its own sessions on it.
        queue: what is claimed.
        handler: called with each job; returns None, a Retry or a Cancel.
        owner: a name of 1 to 64 characters, or an Owner that is open. By
            default the worker opens an Owner for its run, named by host and
            process id; where there can be none, it claims under a plain name,
            and its claims wait for the lease when it dies.
        limit: jobs claimed at once.
        delete: whether done jobs are deleted; None goes by the model.
        drain: stop when nothing is unclaimed, waiting for its own retry, or
            held by this worker. Jobs scheduled for later that were never tried
            are left for another run.
        interval: a pause between turns, for gentle use.
        poll: the longest pause of an idle worker.
        retry_in: the pause after a failed attempt, from the number of
            attempts; used where the model has ScheduleMixin.
        max_runtime: how long one job may run; its claim is not renewed any
            more then, and workers with a `max_runtime` take back claims that
            were not renewed for that long. None: as long as it likes.
        reap_every: the pause between two looks for claims to take back; None:
            this worker takes none back.
        on_claim: called with each claim, after its commit.
        on_outcome: called with each job and what became of it, after the
            commit of its finish; not with those whose claim was lost.
        options: loader options for the claims; jobs are detached, so what a
            handler reads of their relationships is loaded here.
    """

    _waiting: Waiting = THREADS

    def __init__(
        self,
        engine: Engine,
        queue: JobQueue[T],
        handler: Callable[[T], Retry | Cancel | None],
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        delete: bool | None = None,
        drain: bool = False,
        interval: timedelta = timedelta(0),
        poll: timedelta = LONGEST_POLL,
        retry_in: Callable[[int], timedelta] = backoff,
        max_runtime: timedelta | None = None,
        reap_every: timedelta | None = REAP_EVERY,
        on_claim: Callable[[Claim[T]], None] | None = None,
        on_outcome: Callable[[T, Outcome], None] | None = None,
        options: Sequence[Any] = (),
    ) -> None:
        _check_marks(queue.plan.strategy)
        _check_longer_than_nothing(max_runtime=max_runtime, reap_every=reap_every)
        self.engine = engine
        self.queue = queue
        self.handler = handler
        self.owner: str | int | Owner = default_owner() if owner is None else owner
        self._owner_is_ours_alone = owner is None
        self.limit = limit
        self.delete = delete
        self.drain = drain
        self.interval = interval
        self.poll = poll
        self.retry_in = retry_in
        self.max_runtime = max_runtime
        self.reap_every = reap_every
        self.on_claim = on_claim
        self.on_outcome = on_outcome
        self.options = options
        self._stopping = self._waiting.flag()
        self._heartbeat: Heartbeat
        self._worked = False  # whether any transaction has
        self._in_doubt = False  # whether a COMMIT's answer is missing
        self._names: set[str] = set()  # claimed under since the last known COMMIT
        self._next_reap = 0.0

    # -- the loop -------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        Raises:
            DBAPIError: an error of the engine that trying again did not mend.
            BaseException: what a handler or a callback raised that is no
                Exception of a handler (SystemExit, KeyboardInterrupt); what was
                handled is finished and the rest released before.
        """
        with self._owning(), self._heartbeat_for_the_run() as self._heartbeat:
            self._reap()
            self._work()

    def _work(self) -> None:
        batch: Batch[T] = Batch()
        idle = 0
        while True:
            stopping = self.stopping
            claimed, finished = self._turn(batch, claim=not stopping)
            batch = Batch(waiting=list(claimed))
            try:
                self._tell(finished, claimed)
                if stopping or (not claimed and self.drain and self._drained()):
                    return
                idle = 0 if claimed else idle + 1
                self._handle_all(batch)
                # A finish does not wait for a pause to end; and of claims that are in
                # hand under a name that was lost, we would take back our own.
                if self.interval or self._reap_is_due:
                    batch = self._finish_now(batch)
                self._pause(idle)
                self._look_after_owner()
                if self._reap_is_due and batch.is_empty:
                    self._reap()
            except BaseException:
                self._turn(batch, claim=False)
                raise

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

    def _turn(self, batch: Batch[T], *, claim: bool) -> tuple[Claim[T], list[tuple[T, Outcome]]]:
        """Finish what was handled, release what was not, claim what is next.

        Returns the claim, and what was finished: without those that were lost.
        """

        self._heartbeat.rest()
        self._drop_lost(batch)

        def turn(session: Session) -> tuple[Claim[T], list[tuple[T, Outcome]]]:
            found = self._claimed_unawares(session, batch)
            lost = self._finish(session, batch.handled)
            _lost_of(lambda: self.queue.release(session, batch.waiting))
            finished = [pair for pair in batch.handled if not any(pair[0] is job for job in lost)]
            if found or not claim:
                if not claim:
                    self.queue.release(session, found)
                return (found if claim else Claim()), finished
            return self._claim(session), finished

        claimed, finished = self._in_transaction(turn)
        self._heartbeat.watch(claimed.fences)
        return claimed, finished

    def _claim(self, session: Session) -> Claim[T]:
        try:
            claimed = self.queue.claim(
                session, owner=self.owner, limit=self.limit, options=self.options
            )
        except LockLost as error:  # nothing was claimed; the next turn claims under a new name
            log.warning("%s", error)
            return Claim()
        self._names.update(fence.owner for fence in claimed.fences if fence.owner is not None)
        return claimed

    def _finish_now(self, batch: Batch[T]) -> Batch[T]:
        if batch.is_empty:
            return batch
        _, finished = self._turn(batch, claim=False)
        self._tell(finished, Claim())
        return Batch()

    def _claimed_unawares(self, session: Session, batch: Batch[T]) -> Claim[T]:
        """Find the claims of a COMMIT that succeeded while its answer was lost."""
        if not (self._in_doubt and self._owner_is_ours_alone):
            return Claim()
        known = {fence_of(job).identity for job in batch}
        unknown: list[T] = []
        for name in sorted(self._names):  # several, where the lock was lost in between
            claims = self.queue.claimed_by(session, name)
            unknown += [job for job in claims if fence_of(job).identity not in known]
        return Claim(fenced(unknown))

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
        retry_in = outcome.retry_in if isinstance(outcome, Failed) else outcome.in_
        self.queue.fail(session, job, error=error, retry_in=retry_in)

    # -- the jobs -------------------------------------------------------

    def _handle_all(self, batch: Batch[T]) -> None:
        """Handle jobs until told to stop."""
        while batch.waiting and not self.stopping:
            with batch.next() as job:
                self._heartbeat.job_begins()
                outcome = self._handle(job)
            batch.handled.append((job, outcome))
            self._drop_lost(batch)

    def _drop_lost(self, batch: Batch[T]) -> None:
        """Leave jobs alone whose claim was found to be lost: their new owner has them."""
        batch.waiting = [
            job for job in batch.waiting if not self._heartbeat.has_lost(fence_of(job))
        ]

    def _handle(self, job: T) -> Outcome:
        try:
            outcome = self.handler(job)
            self._check_outcome(outcome)
            if isinstance(outcome, Retry) and outcome.in_ is None:
                return replace(outcome, in_=self._wait_after(job))
        except Exception as error:  # the one catch-all: a handler fails its own job only
            log.warning("handler failed: %s", type(error).__name__, exc_info=error)
            return Failed(error, self._wait_after(job))
        return outcome

    def _check_outcome(self, outcome: Any) -> None:
        if outcome is not None and not isinstance(outcome, Retry | Cancel):
            raise ArgumentError(f"a handler returns None, Retry(..) or Cancel(..), not {outcome!r}")
        if outcome is not None and not isinstance(outcome.reason, str | None):
            raise ArgumentError(f"a reason is text: {outcome.reason!r}")
        mapping = self.queue.mapping
        if not isinstance(outcome, Retry):
            return
        if not mapping.has("attempts"):
            raise ArgumentError(f"Retry needs RetryMixin on {mapping}")
        if outcome.in_ is None:
            return
        if not mapping.has("run_at"):
            raise ArgumentError(f"Retry(in_=) needs ScheduleMixin on {mapping}")
        if not isinstance(outcome.in_, timedelta) or not abs(outcome.in_) <= LONGEST_WAIT:
            raise ArgumentError(f"Retry(in_=) takes a timedelta of at most ten years: {outcome!r}")

    def _wait_after(self, job: T) -> timedelta | None:
        """Tell how long a failed job waits; at once where the model has no schedule."""
        mapping = self.queue.mapping
        if not (mapping.has("run_at") and mapping.has("attempts")):
            return None
        return self.retry_in(getattr(job, mapping.attributes["attempts"]))

    def _tell(self, handled: list[tuple[T, Outcome]], claimed: Claim[T]) -> None:
        if self.on_outcome is not None:
            for job, outcome in handled:
                self.on_outcome(job, outcome)
        if self.on_claim is not None and (claimed or claimed.lost):
            self.on_claim(claimed)

    # -- owner, heartbeat and reaping -----------------------------------

    @contextmanager
    def _owning(self) -> Iterator[None]:
        """Have an Owner of our own for the run, unless a name was given."""
        if not self._owner_is_ours_alone:
            yield
            return
        plain, owner = self.owner, Owner(self.engine, process_label(24))
        try:
            self._patiently(owner.open)
        except UnsupportedDatabase as error:
            log.warning("if this worker dies, its claims wait for their lease: %s", error)
            yield
            return
        self.owner = owner
        try:
            yield
        finally:
            self.owner = plain
            owner.close()

    def _look_after_owner(self) -> None:
        """Have a lost lock noticed before a transaction begins.

        A new one takes connections, and the pool may have no second one.
        """
        owner = self.owner
        if not isinstance(owner, Owner) or self.stopping:
            return
        try:
            self._patiently(lambda: self._waiting.apart(lambda: owner.name))
        except LockLost as error:
            log.warning("%s", error)

    def _heartbeat_for_the_run(self) -> Heartbeat:
        return Heartbeat(
            self.engine,
            self.queue.renew,
            lease=self.queue.lease,
            max_runtime=self.max_runtime,
            beats=self._patiently(self._seen_by_others),
            waiting=self._waiting,
        )

    def _seen_by_others(self) -> bool:
        with self.engine.connect() as connection:
            return database_of(connection).seen_by_others(connection)

    @property
    def _reap_is_due(self) -> bool:
        return (
            self.reap_every is not None
            and not self.stopping
            and time.monotonic() >= self._next_reap
        )

    def _reap(self) -> None:
        """Take back claims in a transaction of its own, unless told to leave them."""
        if self.reap_every is None:
            return
        reaped = Reaped()
        try:
            reaped = committed(self.engine, self._take_back)
        except DBAPIError as error:
            if not self._passes(error):
                raise
            log.info("reaping failed, and is tried again at its next time: %s", error.orig)
        pause = 0.0 if reaped and reaped.more else self.reap_every.total_seconds()
        self._next_reap = time.monotonic() + pause * random.uniform(0.8, 1.2)

    def _take_back(self, session: Session) -> Reaped:
        reaped = self.queue.reap(session, max_runtime=self.max_runtime)
        if not reaped:  # nothing was written, so there is nothing to commit
            session.rollback()
        return reaped

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
        """Run and commit a transaction, again if its error is one that passes."""
        result = self._patiently(lambda: self._one_transaction(work))
        self._worked = True
        self._in_doubt = False
        self._names.clear()
        return result

    def _patiently(self, work: Callable[[], R]) -> R:
        """Do something, again if its error is one that passes."""
        deadline = time.monotonic() + PATIENCE.total_seconds()
        pause = 0.05
        while True:
            try:
                return work()
            except (DBAPIError, LockTimeout) as error:
                if time.monotonic() > deadline or not self._passes(error):
                    raise
                said = error.orig if isinstance(error, DBAPIError) else error
                log.info("a transaction failed, and is run again: %s", said)
                self._waiting.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_POLL.total_seconds())

    def _passes(self, error: DBAPIError | LockTimeout) -> bool:
        """Tell whether an error goes away by itself, given time."""
        if is_transient(error) or isinstance(error, LockTimeout):
            return True
        # A connection that broke, or that could not be made: once it worked, wait
        # for the server. Without a statement, the error is one of connecting.
        connecting = isinstance(error, OperationalError) and error.statement is None
        return self._worked and (error.connection_invalidated or connecting)

    def _one_transaction(self, work: Callable[[Session], R]) -> R:
        def doubted(session: Session) -> R:
            result = work(session)
            self._in_doubt = True  # until the answer to the COMMIT is here
            return result

        return committed(self.engine, doubted)


def _check_marks(strategy: str) -> None:
    if strategy != AUTO and not STRATEGIES[strategy].marks:
        raise ArgumentError(
            f"a worker commits between claim and finish, and a claim by {strategy!r} is not "
            "written down; use another strategy"
        )


def _check_longer_than_nothing(**durations: timedelta | None) -> None:
    for name, duration in durations.items():
        if duration is not None and (
            not isinstance(duration, timedelta) or duration <= timedelta(0)
        ):
            raise ArgumentError(f"{name} is a timedelta longer than nothing, or None: {duration!r}")


def _lost_of(finish: Callable[[], None]) -> list[Any]:
    """Go on when claims were lost, and return them: their new owners finish them."""
    try:
        finish()
    except ClaimLost as lost:
        log.warning("%s", lost)
        return list(lost.lost)
    return []
