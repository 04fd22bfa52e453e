"""The loop of a worker: turns, handlers between them, and pauses."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..dialects import database_of
from ..errors import ArgumentError
from ..fence.claim import Claim, fence_of
from ..owners.owner import Owner
from ..queue import JobQueue
from ..verbs.backoff import DEFAULT_BACKOFF, Backoff, check_backoff, delay_or_default
from .batch import Batch
from .heartbeat import Heartbeat
from .lanes import Lane, lanes_of
from .outcomes import Cancel, Failed, Outcome, Retry
from .owning import Owning
from .patience import Patience
from .rescue import REAP_EVERY, Rescue
from .signals import handled
from .threads import THREADS, Waiting
from .turns import Turned, Turns

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)


class Worker(Generic[T]):
    """A loop over one queue, or over steps of a workflow.

    Args:
        engine: the worker opens its own sessions on it.
        queue: what is claimed: a JobQueue; a Workflow, one of its steps or several.
        handler: called with each job of a JobQueue; returns None, a Retry or a
            Cancel. The steps of a workflow have handlers of their own.
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
        backoff: how long a failed job waits; the queue's own by default, else
            1, 2, 4, .. seconds, at most an hour.
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
        queue: JobQueue[T] | Lane[T] | Iterable[Lane[T]],
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
        if not isinstance(engine, Engine):
            raise ArgumentError(f"a Worker needs an Engine, not {engine!r}; see also AsyncWorker")
        _check_longer_than_nothing(max_runtime=max_runtime, reap_every=reap_every)
        self.engine = engine
        self.lanes = lanes_of(queue, handler)
        self._check_handlers()
        self.drain = drain
        self.interval = interval
        self.poll = poll
        self.backoff = _checked(backoff, self.lanes)
        self.max_runtime = max_runtime
        self.on_claim = on_claim
        self.on_outcome = on_outcome
        self._stopping = self._waiting.flag()
        self._heartbeat: Heartbeat
        self._patience = Patience(engine, self._waiting)
        self._owning = Owning(owner, patience=self._patience, waiting=self._waiting)
        self._turns = Turns(self.lanes, self._patience, self._owning, limit, delete, options)
        self._rescue = Rescue(
            [lane.queue for lane in self.lanes],
            patience=self._patience,
            every=reap_every,
            max_runtime=max_runtime,
        )

    @property
    def owner(self) -> str | int | Owner:
        """Who claims: as it was given, else the worker's own Owner or plain name."""
        return self._owning.owner

    # -- the loop -------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        Raises:
            DBAPIError: an error of the engine that trying again did not mend.
            BaseException: what a handler or a callback raised that is no
                Exception of a handler (SystemExit, KeyboardInterrupt); what was
                handled is finished and the rest released before.
        """
        with self._owning.for_the_run(), self._heartbeat_for_the_run() as self._heartbeat:
            self._rescue.look()
            self._work()

    def _work(self) -> None:
        batch: Batch[T] = Batch()
        idle = 0
        while True:
            stopping = self.stopping
            turned = self._turn(batch, claim=not stopping)
            batch = Batch(waiting=turned.in_hand)
            try:
                self._tell(turned)
                if stopping or (batch.is_empty and self.drain and self._drained()):
                    return
                idle = idle + 1 if batch.is_empty else 0
                self._handle_all(batch)
                # A finish does not wait for a pause to end; and of claims that are in
                # hand under a name that was lost, we would take back our own.
                if self.interval or self._reap_is_due:
                    batch = self._finish_now(batch)
                self._pause(idle)
                if not self.stopping:
                    self._owning.look_after()
                if self._reap_is_due and batch.is_empty:
                    self._rescue.look()
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

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        chosen = signals or (signal.SIGTERM, signal.SIGINT)
        return handled(lambda number, frame: self.stop(), *chosen)

    # -- turns ----------------------------------------------------------

    def _turn(self, batch: Batch[T], *, claim: bool) -> Turned[T]:
        """Finish what was handled, release what was not, claim what is next."""
        self._heartbeat.rest()
        self._drop_lost(batch)
        turned = self._turns.turn(batch, claim=claim)
        self._heartbeat.watch(turned.fences)
        return turned

    def _finish_now(self, batch: Batch[T]) -> Batch[T]:
        if batch.is_empty:
            return batch
        self._tell(self._turn(batch, claim=False))
        return Batch()

    def _tell(self, turned: Turned[T]) -> None:
        if self.on_outcome is not None:
            for one in turned.finished:
                self.on_outcome(one.job, one.outcome)
        if self.on_claim is not None:
            for _, claim in turned.claims:
                if claim or claim.lost:
                    self.on_claim(claim)

    # -- the jobs -------------------------------------------------------

    def _handle_all(self, batch: Batch[T]) -> None:
        """Handle jobs until told to stop."""
        while batch.waiting and not self.stopping:
            with batch.next() as one:
                self._heartbeat.job_begins()
                one.outcome = self._handle(one.lane, one.job)
            batch.handled.append(one)
            self._drop_lost(batch)

    def _drop_lost(self, batch: Batch[T]) -> None:
        """Leave jobs alone whose claim was found to be lost: their new owner has them."""
        batch.waiting = [
            one for one in batch.waiting if not self._heartbeat.has_lost(fence_of(one.job))
        ]

    def _handle(self, lane: Lane[T], job: T) -> Outcome:
        try:
            outcome: Outcome = self._call(lane.handler, job)
            lane.check(outcome)
            if isinstance(outcome, Retry) and outcome.in_ is None:
                return replace(outcome, in_=self._wait_after(lane, job))
        except Exception as error:  # the one catch-all: a handler fails its own job only
            log.warning("handler failed: %s", type(error).__name__, exc_info=error)
            return Failed(error, self._wait_after(lane, job))
        return outcome

    def _call(self, handler: Callable[[T], Any], job: T) -> Any:
        return handler(job)

    def _wait_after(self, lane: Lane[T], job: T) -> timedelta | None:
        """Tell how long a failed job waits; at once where the model has no schedule."""
        mapping = lane.queue.mapping
        if not (mapping.has("run_at") and mapping.has("attempts")):
            return None
        attempts = getattr(job, mapping.attributes["attempts"])
        return delay_or_default(self.backoff or lane.queue.backoff or DEFAULT_BACKOFF, attempts)

    def _check_handlers(self) -> None:
        """Refuse handlers that this kind of worker cannot call."""
        for lane in self.lanes:
            if lane.is_async:
                raise ArgumentError(f"{lane.handler!r} is to be awaited: use an AsyncWorker")

    # -- heartbeat, reaping, pauses -------------------------------------

    def _heartbeat_for_the_run(self) -> Heartbeat:
        return Heartbeat(
            self.engine,
            self.lanes[0].queue.renew,  # of whichever: it goes by fences
            lease=min(lane.queue.lease for lane in self.lanes),
            max_runtime=self.max_runtime,
            beats=self._patience.patiently(self._seen_by_others),
            waiting=self._waiting,
        )

    def _seen_by_others(self) -> bool:
        with self.engine.connect() as connection:
            return database_of(connection).seen_by_others(connection)

    @property
    def _reap_is_due(self) -> bool:
        return self._rescue.is_due and not self.stopping

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

        def drained(session: Session) -> bool:
            return all(session.execute(lane.left()).first() is None for lane in self.lanes)

        return self._patience.transaction(drained)


def _checked(backoff: Backoff | None, lanes: Sequence[Lane[Any]]) -> Backoff | None:
    if backoff is not None:
        for lane in lanes:
            check_backoff(lane.queue.mapping, backoff)
    return backoff


def _check_longer_than_nothing(**durations: timedelta | None) -> None:
    for name, duration in durations.items():
        if duration is not None and (
            not isinstance(duration, timedelta) or duration <= timedelta(0)
        ):
            raise ArgumentError(f"{name} is a timedelta longer than nothing, or None: {duration!r}")
