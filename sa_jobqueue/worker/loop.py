"""The Worker: turns, handlers between them, and pauses."""

from __future__ import annotations

import random
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from ..dialects import database_of
from ..errors import ArgumentError
from ..fence.claim import Claim, fence_of
from ..owners.owner import Owner
from ..process.runtime import THREADS, Runtime
from ..process.signals import signals_handled
from ..queue import JobQueue
from ..sessions.transactions import connected, routed_to_writes
from ..verbs.backoff import DEFAULT_BACKOFF, Backoff, check_backoff, delay_or_default
from .batch import Batch, InHand
from .detached import log_changes
from .events import tell_lock_lost, tell_start
from .heartbeat import Heartbeat
from .job_context import JobContext, in_context
from .lanes import Lane, lanes_of
from .log_records import Attempt
from .outcomes import Cancel, Failed, Outcome, Retry
from .owner_name import OwnerName
from .reaper import REAP_EVERY, Reaper
from .transactional import HandlersTransaction, check_sessions
from .transactions import Refusals, Stopped, Transactions
from .turns import TurnResult, Turns

T = TypeVar("T")

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)


class Worker(Generic[T]):
    """A loop over one queue or several, or over steps of a workflow.

    Args:
        engine: the worker opens its own sessions on it. A sessionmaker opens them as the
            application does: with its class, its criteria and its routing of writes.
        queue: where jobs are claimed: a JobQueue, or several, each with its handler; a Workflow,
            or one or several of its steps. All are in one database.
        handler: for one JobQueue that has none: called with each job; returns None, a Retry or
            a Cancel.
        owner: a name of 1 to 64 characters, or an Owner that is open. By
            default the worker opens an Owner for its run, named by host and
            process id. Where no Owner is possible it claims under a plain name:
            when it dies, its claims wait for the lease.
        limit: the most jobs that a turn claims.
        delete: whether done jobs are deleted; None goes by the model.
        drain: stop when no job is unclaimed, due for a retry later, or in the hands
            of this worker. Jobs scheduled for later that were never tried
            are left for another run.
        interval: a pause between turns, for gentle use.
        poll: the longest pause of an idle worker.
        backoff: the delay of a failed job; the queue's own by default, else
            1, 2, 4, .. seconds, at most an hour.
        max_runtime: how long a job may run. After that its claim is not renewed,
            and workers with a `max_runtime` take back claims that
            were not renewed for so long. None: without limit.
        reap_every: the pause between two reaps; None: this worker does not reap.
        on_claim: called with each claim, after its commit.
        on_outcome: called with each job and its outcome, after the
            commit of its finish; not for jobs whose claim was lost.
        options: loader options for the claims. The handler gets detached jobs, so load
            here the relationships that it reads.
    """

    _runtime: Runtime = THREADS

    def __init__(
        self,
        engine: Engine | sessionmaker[Any],
        queue: JobQueue[T] | Lane[T] | Iterable[JobQueue[T] | Lane[T]],
        handler: Callable[[T], Retry | Cancel | None] | None = None,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        delete: bool | None = None,
        drain: bool = False,
        interval: timedelta = timedelta(0),
        poll: timedelta = LONGEST_POLL,
        backoff: Backoff | None = None,
        max_runtime: timedelta | None = None,
        reap_every: timedelta | None = REAP_EVERY,
        on_claim: Callable[[Claim[T]], None] | None = None,
        on_outcome: Callable[[T, Outcome], None] | None = None,
        options: Sequence[Any] = (),
    ) -> None:
        if not isinstance(engine, Engine | sessionmaker):
            raise ArgumentError(
                f"a Worker needs an Engine, or a sessionmaker, not {engine!r}; see also AsyncWorker"
            )
        _check_positive(max_runtime=max_runtime, reap_every=reap_every)
        self.lanes = lanes_of(queue, handler)
        mapper = self.lanes[0].queue.mapping.mapper
        open_session = None
        if isinstance(engine, sessionmaker):
            open_session = partial(engine, expire_on_commit=False)
            engine = _engine_of(open_session, mapper)
        self.engine = engine
        self._open_session = open_session
        self._check_handlers()
        check_sessions(open_session, self.lanes)
        self.drain = drain
        self.interval = interval
        self.poll = poll
        self.backoff = _checked_backoff(backoff, self.lanes)
        self.max_runtime = max_runtime
        self.on_claim = on_claim
        self.on_outcome = on_outcome
        self._stopping = self._runtime.flag()
        self._heartbeat: Heartbeat
        self._transactions = Transactions(
            self.engine,
            self._runtime,
            stopping=self._stopping,
            open_session=open_session,
            mapper=mapper,
        )
        self._refused_looks = Refusals(self._transactions, "a look for the jobs that are left")
        self._owner_name = OwnerName(owner, transactions=self._transactions, runtime=self._runtime)
        self._turns = Turns(
            self.lanes,
            self._transactions,
            self._owner_name,
            limit,
            delete,
            options,
            lambda in_hand: self._delay_after(in_hand.lane, in_hand.attempts),
        )
        self._reaper = Reaper(
            [lane.queue for lane in self.lanes],
            transactions=self._transactions,
            every=reap_every,
            max_runtime=max_runtime,
        )

    @property
    def owner(self) -> str | int | Owner:
        """The owner as given, else the worker's own Owner or plain name."""
        return self._owner_name.owner

    # -- the loop -------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        Raises:
            Exception: what the database still refused after five minutes (PATIENCE).
            BaseException: anything that a callback raised, and what a handler raised that is
                no Exception, such as KeyboardInterrupt. Before that its job is failed, the
                handled jobs are finished, and the others released.
        """
        with (
            suppress(Stopped),
            self._owner_name.for_the_run(),
            self._heartbeat_for_the_run() as self._heartbeat,
        ):
            self._reaper.reap()
            self._work()

    def _work(self) -> None:
        batch: Batch[T] = Batch()
        idle = 0
        while True:
            stopping = self.stopping
            result = self._end(batch) if stopping else self._turn_or_end(batch)
            batch = Batch(deque(result.in_hand))
            try:
                self._call_back(result)
                if stopping:
                    return
                if self.drain and self._drained_by(result):
                    self._call_back(self._end(batch))
                    return
                idle = 0 if result.in_hand or result.claim_is_due else idle + 1
                self._handle_all(batch)
                # Finish before a pause. And if we lost our owner name, reaping now would take
                # back jobs that we still hold; so finish before reaping.
                if self.interval or self._reap_is_due:
                    batch = self._finish_now(batch)
                self._pause(idle)
                if not self.stopping:
                    self._owner_name.check_lock()
                if self._owner_name.was_lost():
                    tell_lock_lost(lane.queue for lane in self.lanes)
                if self._reap_is_due and batch.is_empty:
                    self._reaper.reap()
            except BaseException:
                self._end(batch)
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

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        chosen = signals or (signal.SIGTERM, signal.SIGINT)
        return signals_handled(lambda number, frame: self.stop(), *chosen)

    # -- turns ----------------------------------------------------------

    def _turn(self, batch: Batch[T], *, claim: bool) -> TurnResult[T]:
        """Finish the handled jobs, release the others, claim the next ones."""
        self._heartbeat.rest()
        self._drop_lost(batch)
        result = self._turns.turn(batch, claim=claim)
        self._heartbeat.watch(result.fences, aside=self._turns.fences_aside)
        return result

    def _turn_or_end(self, batch: Batch[T]) -> TurnResult[T]:
        """Do a turn; if it is interrupted, finish the handled jobs before the run ends."""
        try:
            return self._turn(batch, claim=True)
        except Exception:
            raise
        except BaseException as error:  # such as KeyboardInterrupt
            if not self._is_own_stop(error):
                self._end(batch)
            raise

    def _end(self, batch: Batch[T]) -> TurnResult[T]:
        """Finish what was handled, and give all other jobs back, before the run ends."""
        self._heartbeat.rest()
        self._drop_lost(batch)
        return self._turns.end(batch)

    def _finish_now(self, batch: Batch[T]) -> Batch[T]:
        if batch.is_empty:
            return batch
        self._call_back(self._turn(batch, claim=False))
        return Batch()

    def _call_back(self, result: TurnResult[T]) -> None:
        if self.on_outcome is not None:
            for in_hand in result.finished:
                self.on_outcome(in_hand.job, in_hand.outcome)
        if self.on_claim is not None:
            for _, claim in result.claims:
                if claim or claim.lost:
                    self.on_claim(claim)

    # -- the jobs -------------------------------------------------------

    def _handle_all(self, batch: Batch[T]) -> None:
        """Handle the jobs of a batch until stopped."""
        while batch.unhandled and not self.stopping:
            # For the next job only: to look at all that wait, after each job, was quadratic.
            if self._heartbeat.has_lost(fence_of(batch.unhandled[0].job)):
                batch.unhandled.popleft()
                continue
            with batch.next(given_back_by=self._gives_back) as in_hand:
                self._heartbeat.job_begins()
                self._handle(in_hand)

    def _drop_lost(self, batch: Batch[T]) -> None:
        """Drop the jobs whose claim a renewal found lost: they have a new owner."""
        batch.unhandled = deque(
            in_hand
            for in_hand in batch.unhandled
            if not self._heartbeat.has_lost(fence_of(in_hand.job))
        )

    def _handle(self, in_hand: InHand[T]) -> None:
        """Call the handler, and note the outcome."""
        lane, job, attempts = in_hand.lane, in_hand.job, in_hand.attempts
        attempt = Attempt(in_hand)
        if lane.queue.mapping.listeners:
            tell_start(lane.queue, fence_of(job), attempts)
        try:
            outcome: Outcome = self._handled(in_hand)
            if isinstance(outcome, Retry) and outcome.in_ is None:
                outcome = replace(outcome, in_=self._delay_after(lane, attempts))
        except BaseException as error:  # the only catch-all: a handler fails no job but its own
            in_hand.outcome = Failed(error, self._delay_after(lane, attempts))
            if not self._gives_back(error):
                attempt.log_failure(error, in_hand.outcome.retry_in)
            if not isinstance(error, Exception):
                raise
        else:
            in_hand.outcome = outcome

    def _handled(self, in_hand: InHand[T]) -> Retry | Cancel | str | None:
        """Call the handler; return the outcome."""
        lane, job = in_hand.lane, in_hand.job
        context = JobContext(in_hand.attempts, str(fence_of(job).owner), self._stopping)
        with in_context(context):
            if lane.transactional:
                return self._handled_in_transaction(in_hand)
            returned = self._call(lane.handler, job)
        log_changes(job)
        return lane.outcome_of(returned)

    def _handled_in_transaction(self, in_hand: InHand[T]) -> Retry | Cancel | str | None:
        """Call a transactional handler: the job leaves the heartbeat, and its row is locked."""
        fence = fence_of(in_hand.job)
        self._heartbeat.leave_alone(fence)
        try:
            return HandlersTransaction(
                self._transactions,
                in_hand,
                self._open_for_handler,
                partial(self._call_with_session, in_hand.lane.handler),
                self._turns.delete,
                self._turns.options,
            ).run()
        finally:
            if in_hand.ended is None:  # its outcome is still to be written
                self._heartbeat.watch_again(fence)

    def _open_for_handler(self) -> Session:
        return Session(self.engine) if self._open_session is None else self._open_session()

    def _call_with_session(self, handler: Callable[..., Any], session: Session, job: Any) -> Any:
        return self._call(handler, session, job)

    def _is_own_stop(self, error: BaseException) -> bool:
        """Tell whether the worker itself interrupted a handler, to stop: this is no attempt."""
        return False

    def _gives_back(self, error: BaseException) -> bool:
        """Tell whether a job whose handling ended so was not attempted."""
        return isinstance(error, Stopped) or self._is_own_stop(error)

    def _call(self, handler: Callable[..., Any], *arguments: Any) -> Any:
        return handler(*arguments)

    def _delay_after(self, lane: Lane[T], attempts: int | None) -> timedelta | None:
        """Return the delay of a failed job; None: the model counts no attempts."""
        if attempts is None:
            return None
        return delay_or_default(self.backoff or lane.queue.backoff or DEFAULT_BACKOFF, attempts)

    def _check_handlers(self) -> None:
        """Refuse handlers that this kind of worker cannot call."""
        for lane in self.lanes:
            if lane.is_async:
                raise ArgumentError(f"{lane.handler!r} has to be awaited: use an AsyncWorker")

    # -- heartbeat, reaping, pauses -------------------------------------

    def _heartbeat_for_the_run(self) -> Heartbeat:
        return Heartbeat(
            self.engine,
            self.lanes[0].queue.renew,  # any lane's: the fences tell the queue
            lease=min(lane.queue.lease for lane in self.lanes),
            max_runtime=self.max_runtime,
            beats=self._transactions.patiently(self._seen_by_others),
            runtime=self._runtime,
        )

    def _seen_by_others(self) -> bool:
        with connected(self.engine) as connection:
            return database_of(connection).seen_by_others(connection)

    @property
    def _reap_is_due(self) -> bool:
        return self._reaper.is_due and not self.stopping

    def _pause(self, idle: int) -> None:
        pause = self.interval.total_seconds()
        if idle:
            longest = self.poll.total_seconds()
            shortest = min(SHORTEST_POLL.total_seconds(), longest)
            poll = min(shortest * 2 ** min(idle - 1, 20), longest)
            pause = max(pause, poll * random.uniform(0.5, 1.0))
        if pause:
            self._stopping.wait(pause)

    def _drained_by(self, result: TurnResult[T]) -> bool:
        """Tell whether a turn that claimed nothing has left nothing to wait for."""
        if result.in_hand or result.claim_is_due or result.refused:
            return False
        return self._drained()

    def _drained(self) -> bool:
        """Tell whether no job is left that this run should wait for."""

        def drained(session: Session) -> bool:
            return all(session.execute(lane.left()).first() is None for lane in self.lanes)

        try:
            nothing_left = self._transactions.run(drained)
        except Exception as error:
            self._refused_looks.note(error)
            return False
        self._refused_looks.end()
        return nothing_left


def _engine_of(open_session: Callable[[], Session], mapper: Any) -> Engine:
    """Return the engine that a sessionmaker's sessions write a class with."""
    with open_session() as session:
        bind = session.get_bind(**routed_to_writes(mapper))
    if not isinstance(bind, Engine):
        raise ArgumentError(
            "a worker opens connections, and the sessions of this sessionmaker are bound to one: "
            "give a sessionmaker that is bound to an Engine"
        )
    return bind


def _checked_backoff(backoff: Backoff | None, lanes: Sequence[Lane[Any]]) -> Backoff | None:
    if backoff is not None:
        for lane in lanes:
            check_backoff(lane.queue.mapping, backoff)
    return backoff


def _check_positive(**durations: timedelta | None) -> None:
    for name, duration in durations.items():
        if duration is not None and (
            not isinstance(duration, timedelta) or duration <= timedelta(0)
        ):
            raise ArgumentError(
                f"{name}= takes a timedelta longer than zero, or None, not {duration!r}"
            )
