"""The Worker: its arguments, and how it runs."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import sessionmaker

from ..dialects import database_of, database_of_engine
from ..errors import ArgumentError
from ..fence.claim import Claim
from ..owners.owner import Owner
from ..process import THREADS, Runtime, signals_handled
from ..queue import JobQueue
from ..sessions.deadlines import Deadlines, no_deadline
from ..sessions.transactions import connected
from ..verbs.backoff import (
    DEFAULT_BACKOFF,
    LONGEST_AGE,
    Backoff,
    check_backoff,
    check_durations,
    delay_or_default,
)
from ..wakeups import Wakeups
from .chores import REAP_EVERY, Heartbeat, Reaper, add_chores_beside
from .connections import check_connections, engine_of, may_be_bound, what_to_give
from .crew import LONGEST_POLL, Crew, Loop
from .handlers import Calls
from .in_hand import InHand, log_finished
from .lanes import Done, Lane, NotDone, Outcome, lanes_of
from .transactions import OwnerName, Stopped, Transactions
from .turns import TurnResult, Turns

log = logging.getLogger("sa_jobqueue.worker")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    T = WithDefault("T", default=Any)
else:
    T = TypeVar("T")

#: How long running handlers may go on after stop(): Kubernetes ends a process after 30 seconds.
GRACE = timedelta(seconds=25)

#: How long a call of a worker to its database may take.
DEADLINE = timedelta(seconds=30)


class Worker(Generic[T]):
    """A loop over one queue or several, or over steps of a workflow.

    Args:
        engine: an Engine, on which the worker opens its own sessions; or a sessionmaker, whose
            sessions have the application's class, criteria and routing of writes.
        queue: where jobs are claimed: a JobQueue, or several, each with its handler; a Workflow,
            or one or several of its steps. All are in one database.
        handler: for one JobQueue that has none: called with each job; returns None, a Done, a
            Retry, a Release or a Cancel.
        owner: a name of 1 to 64 characters, or an open Owner. By default
            the worker opens an Owner for its run, named by host and process
            id. If no Owner is possible, the worker claims under a plain name;
            if it then dies, its claims are reaped after the lease.
        concurrency: how many handlers run at once, each in a thread of its own.
        limit: the most jobs in hand, including jobs that wait for a free thread; at least
            `concurrency`, which is the default. With several threads, the default is twice as
            many while handlers take a tenth of a second or less.
        delete: whether done jobs are deleted; None: as the model says.
        drain: stop when no job is due or waits for a retry, and this worker holds no job.
            Jobs that are scheduled for later and were never tried are left
            for another run.
        interval: a pause before each claim, to limit the load; nothing shortens it.
        poll: the longest pause of an idle worker between two looks for jobs.
        grace: how long running handlers may go on after :meth:`stop`. Then their jobs are
            released, and the writes of transactional handlers are rolled back.
        deadline: how long a call of the worker to its database may take: connecting, a statement,
            a COMMIT. It is longer if a statement may wait for a lock for longer. Then the worker
            closes the connection, and goes on with a new one. Handlers have no such limit.
        backoff: the delay of a failed job; by default that of the queue, otherwise
            1, 2, 4, .. seconds, at most an hour.
        max_runtime: how long a job may run. After that, its claim is not renewed,
            and workers with a `max_runtime` reap claims that were not renewed
            for so long. None: no limit.
        reap_every: the pause between two reaps; None: this worker does not reap.
        on_claim: called with each claim, after its commit.
        on_outcome: called with each job and its outcome, after the
            commit of its finish; not for jobs whose claim was lost.
        options: loader options for the claims. The handler gets detached jobs, so load
            here the relationships that it reads.

    Raises:
        ArgumentError: an argument cannot work, a queue has no handler, two queues have the same
            jobs, a handler must be awaited, or the claims of a strategy write nothing.
    """

    _runtime: Runtime = THREADS
    _calls_kind: type[Calls] = Calls
    _crew_kind: type[Crew] = Crew

    def __init__(
        self,
        engine: Engine | sessionmaker[Any],
        queue: JobQueue[T] | Lane[T] | Iterable[JobQueue[Any] | Lane[Any]],
        handler: Callable[[T], Done | NotDone | None] | None = None,
        *,
        owner: str | int | Owner | None = None,
        concurrency: int = 1,
        limit: int | None = None,
        delete: bool | None = None,
        drain: bool = False,
        interval: timedelta = timedelta(0),
        poll: timedelta = LONGEST_POLL,
        grace: timedelta = GRACE,
        deadline: timedelta = DEADLINE,
        backoff: Backoff | None = None,
        max_runtime: timedelta | None = None,
        reap_every: timedelta | None = REAP_EVERY,
        on_claim: Callable[[Claim[T]], None] | None = None,
        on_outcome: Callable[[T, Outcome], None] | None = None,
        options: Sequence[Any] = (),
    ) -> None:
        if not isinstance(engine, Engine | sessionmaker):
            raise ArgumentError(
                f"a Worker needs an Engine, or a sessionmaker, not {engine!r}: "
                f"{what_to_give(engine) or 'for an AsyncEngine use AsyncWorker'}"
            )
        check_durations(zero=False, none=True, longest=LONGEST_AGE, max_runtime=max_runtime)
        check_durations(zero=False, none=True, reap_every=reap_every)
        check_durations(zero=True, grace=grace, interval=interval)
        check_durations(zero=False, poll=poll, deadline=deadline)
        _check_numbers(concurrency, limit, delete)
        self.concurrency, self.limit = concurrency, limit
        self.lanes = lanes_of(queue, handler)
        for lane in self.lanes if backoff is not None else ():
            check_backoff(lane.mapping, backoff)
        open_session = None
        if isinstance(engine, sessionmaker):
            open_session = partial(engine, expire_on_commit=False)
            engine = engine_of(open_session, self.lanes)
        self.engine: Any = engine
        self._engine = engine
        self.drain = drain
        self.interval = interval
        self.poll = poll
        self.grace = grace
        self.deadline = deadline
        self.backoff = backoff
        self.max_runtime = max_runtime
        self.reap_every = reap_every
        self.on_claim = on_claim
        self.on_outcome = on_outcome
        self.delete = delete
        self.options = options
        self._running = Lock()
        self._stopping = self._runtime.flag()
        self._crew: Crew | None = None
        self._deadlines: Deadlines | None = None
        self._transactions = Transactions(
            self._engine,
            self._runtime,
            stopping=self._stopping,
            open_session=open_session,
            mapper=None if open_session is None else self.lanes[0].mapping.mapper,
        )
        self._owner_name = OwnerName(owner, self._transactions)
        self._calls = self._calls_kind(self._transactions, self._delay_of, delete, options)
        self._calls.check(self.lanes)

    @property
    def owner(self) -> str | int | Owner:
        """The owner that you gave, otherwise the worker's own Owner or plain name."""
        return self._owner_name.owner

    # -- the run --------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or, with `drain`, until the queue is empty.

        The calling thread watches over other threads, which call the handlers.

        Raises:
            ArgumentError: the engine's pool, or a database in memory, has too few connections; or
                the worker runs already.
            Exception: the database still refused something after five minutes (PATIENCE).
            HandlerTimeout: a plain handler still runs after its timeout. Its attempt has failed;
                end the process.
            BaseException: anything that a callback raised, and what a handler raised that is
                no Exception, such as KeyboardInterrupt. Its job is then failed, the handled jobs
                are finished, and all other jobs are released.
        """
        if not self._running.acquire(blocking=False):
            raise ArgumentError("this worker runs already; make another one for a second run")
        self._deadlines = Deadlines(self._engine, self.deadline, _end_process)
        try:
            with self._deadlines, suppress(Stopped), self._owner_name.for_the_run():
                alone = self._transactions.patiently(self._prepare_connections)
                self._work(alone=alone)
        finally:
            self._running.release()

    def check_database(self, check: Callable[[Connection], None]) -> bool:
        """Call `check` with a connection, before :meth:`run`; wait for a server that is away.

        Returns:
            False: the worker was stopped while it waited.

        Raises:
            Exception: `check` raised it, or the server was still away after five minutes. The
                error of a wrong password or a missing database is raised at once.
        """

        def connect_and_check() -> None:
            with connected(self._engine) as connection:
                check(connection)

        try:
            self._transactions.patiently(connect_and_check)
        except Stopped:
            return False
        return True

    def stop(self) -> None:
        """Have :meth:`run` finish the running jobs, release the rest, and return.

        Safe to call from a signal handler or another thread.
        """
        if self._deadlines is not None:
            self._deadlines.end_at(time.monotonic() + self.grace.total_seconds())
        self._stopping.set()
        self._notify()

    def wake(self) -> None:
        """Let an idle worker claim now, unless it has an `interval`; safe from another thread."""
        self._wake_at(0.0)

    def _wake_at(self, at: float) -> None:
        """Let an idle worker claim at a time, by time.monotonic()."""
        if self._crew is not None:
            for loop in self._crew.loops:
                loop.wake(at)
            self._notify()

    def _notify(self) -> None:
        """Wake the supervisor."""
        if self._crew is not None:
            with self._crew.lock:
                self._crew.notice()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping.is_set()

    @property
    def stuck(self) -> str | None:
        """The call to the database that neither returns nor can be ended, or None."""
        return None if self._deadlines is None else self._deadlines.stuck

    @property
    def trouble(self) -> str | None:
        """Why the worker cannot claim now, or None if its last turn has succeeded."""
        return "the worker is to stop" if self.stopping else self._transactions.trouble

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        chosen = signals or (signal.SIGTERM, signal.SIGINT)
        return signals_handled(lambda number, frame: self.stop(), *chosen)

    # -- the parts of a run ---------------------------------------------

    def _prepare_connections(self) -> bool:
        """Look at the database and the pool; tell whether this thread has to do everything.

        On a database in memory, other threads would not see the database.
        """
        with connected(self._engine) as connection:
            database = database_of(connection)
            alone = not database.seen_by_others(connection)
            assert self._deadlines is not None
            self._deadlines.never_below(database.lock_timeout(connection))
            has_spare = check_connections(
                self._engine.pool,
                self.concurrency,
                self.lanes,
                alone=alone,
                keeps_timeouts=self._calls.keeps_timeouts,
            )
            # Behind a pooler a limit of the session would be another's. On an AUTOCOMMIT engine
            # each turn sets the level of its transaction.
            is_shared = database.may_wait_without_limit and database.through_pooler(connection)
            opened, mapper = self._transactions.open_session, self._transactions.mapper
            self._transactions.keeps = (
                has_spare
                and not is_shared
                and not database.in_autocommit(connection)
                and (opened is None or may_be_bound(opened, connection, mapper))
            )
        return alone

    def _work(self, *, alone: bool) -> None:
        """Put the parts of a run together, and let them work."""
        shows = self.on_outcome is not None
        turns = Turns(self.lanes, self._owner_name, self._calls, shows=shows)
        wakeups = None if self.drain or self.interval else self._wakeups(alone=alone)
        loop = Loop(turns, self.poll, self.interval.total_seconds(), wakeups)
        self._crew = crew = self._crew_kind(
            self._runtime,
            [loop],
            self._calls,
            self._tell,
            self._stopping,
            self.limit,
            self.concurrency,
            self.grace,
            self.drain,
            alone,
        )
        heartbeat = Heartbeat(crew, loop, self.max_runtime)
        self._calls.wait_for_renewal = heartbeat.wait_for_renewal
        reaper = Reaper(crew, loop, self.lanes, self.reap_every, self.max_runtime)
        with ExitStack() as stack:
            if not alone:
                heartbeat.begin(stack)
            crew.chores.append(reaper)
            if wakeups is not None:
                stack.enter_context(wakeups)
            stack.callback(self._transactions.give_back)
            reaper.run()
            add_chores_beside(stack, crew, loop, lambda: self.stuck)
            crew.work()

    def _wakeups(self, *, alone: bool) -> Wakeups:
        return Wakeups(
            self._engine,
            database_of_engine(self._engine),
            [lane.queue.plan.spec for lane in self.lanes],
            self._wake_at,
            runtime=self._runtime,
            poll=self.poll,
            shared=not alone,
        )

    def _tell(self, result: TurnResult) -> None:
        """Log and call back, after the commit of a turn."""
        log_finished(result.finished)
        if self.on_outcome is None and self.on_claim is None:
            return
        with no_deadline():
            if self.on_outcome is not None:
                for in_hand in result.finished:
                    self.on_outcome(in_hand.job, in_hand.outcome)
            if self.on_claim is not None:
                for _, claim in result.claims:
                    if claim or claim.lost:
                        self.on_claim(claim)

    def _delay_of(self, in_hand: InHand) -> timedelta | None:
        """Return the delay of a failed job; None: the model counts no attempts."""
        if in_hand.attempts is None:
            return None
        backoff = self.backoff or in_hand.lane.queue.backoff or DEFAULT_BACKOFF
        return delay_or_default(backoff, in_hand.attempts)


def _end_process(what: str) -> None:
    """End the process: a call neither returns nor can be cut off, so no turn can follow."""
    log.critical(
        "%s has not returned, and its connection could not be closed: this process ends, so "
        "that its supervisor starts another, and a reap returns its jobs to the queue",
        what,
    )
    logging.shutdown()
    os._exit(os.EX_SOFTWARE)


def _check_numbers(concurrency: Any, limit: Any, delete: Any) -> None:
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ArgumentError(f"concurrency is a number of jobs, at least 1: {concurrency!r}")
    if limit is not None and (not isinstance(limit, int) or limit < concurrency):
        raise ArgumentError(
            f"limit is a number of jobs, at least concurrency ({concurrency}): {limit!r}"
        )
    if not isinstance(delete, bool | None):
        raise ArgumentError(
            f"delete= takes True, False, or None for what the model says, not {delete!r}"
        )


class WorkerOptions(TypedDict, total=False):
    """Names and types; :class:`Worker` tells what they mean, and has the defaults."""

    owner: str | int | Owner | None
    concurrency: int
    limit: int | None
    delete: bool | None
    drain: bool
    interval: timedelta
    poll: timedelta
    grace: timedelta
    deadline: timedelta
    backoff: Backoff | None
    max_runtime: timedelta | None
    reap_every: timedelta | None
    options: Sequence[Any]
