"""The Worker: its arguments, and how it runs."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import sessionmaker

from ..errors import ArgumentError
from ..fence.claim import Claim
from ..owners.owner import Owner
from ..process import THREADS, Runtime, signals_handled
from ..queue import JobQueue
from ..verbs.backoff import (
    DEFAULT_BACKOFF,
    LONGEST_AGE,
    Backoff,
    check_backoff,
    check_durations,
    delay_or_default,
)
from .chores import REAP_EVERY
from .crew import LONGEST_POLL, Crew, Loop
from .deadlines import Deadlines
from .handlers import Calls
from .in_hand import InHand
from .lanes import Done, Lane, NotDone, Outcome, lanes_of
from .sites import Sites
from .transactions import Stopped

log = logging.getLogger("sa_jobqueue.worker")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    T = WithDefault("T", default=Any)
else:
    T = TypeVar("T")

#: What a worker opens sessions with.
Bind: TypeAlias = "Engine | sessionmaker[Any]"

#: How long running handlers may go on after stop(): Kubernetes ends a process after 30 seconds.
GRACE = timedelta(seconds=25)

#: How long a call of a worker to its database may take.
DEADLINE = timedelta(seconds=30)


@dataclass(eq=False, repr=False)
class Worker(Generic[T]):
    """A loop over one queue or several, or over steps of a workflow.

    Args:
        engine: an Engine, on which the worker opens its own sessions; or a sessionmaker, whose
            sessions have the application's class, criteria and routing of writes. For several
            databases: a mapping of their names to Engines or sessionmakers, or a function that
            returns one, and is asked every 30 seconds.
        queue: where jobs are claimed: a JobQueue, or several, each with its handler; a Workflow,
            or one or several of its steps. All are in one database, or in each of several.
        handler: for one JobQueue that has none: called with each job; returns None, a Done, a
            Retry, a Release or a Cancel.
        owner: a name of 1 to 64 characters, or an open Owner. By default
            the worker opens an Owner for its run, named by host and process
            id. If no Owner is possible, the worker claims under a plain name;
            if it then dies, its claims are reaped after the lease.
        concurrency: how many handlers run at once, each in a thread of its own.
        limit: the most jobs in hand, including jobs that wait for a free thread; at least
            `concurrency`, which is the default. A batch counts as one. With several threads, the
            default is twice as many while handlers take a tenth of a second or less.
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

    engine: Bind | Mapping[str, Bind] | Callable[[], Mapping[str, Bind]]
    queue: JobQueue[T] | Lane[T] | Iterable[JobQueue[Any] | Lane[Any]]
    handler: Callable[[T], Done | NotDone | None] | None = None
    _: KW_ONLY
    owner: str | int | Owner | None = None
    concurrency: int = 1
    limit: int | None = None
    delete: bool | None = None
    drain: bool = False
    interval: timedelta = timedelta(0)
    poll: timedelta = LONGEST_POLL
    grace: timedelta = GRACE
    deadline: timedelta = DEADLINE
    backoff: Backoff | None = None
    max_runtime: timedelta | None = None
    reap_every: timedelta | None = REAP_EVERY
    on_claim: Callable[[Claim[T]], None] | None = None
    on_outcome: Callable[[T, Outcome], None] | None = None
    options: Sequence[Any] = ()

    _runtime: ClassVar[Runtime] = THREADS
    _calls_kind: ClassVar[type[Calls]] = Calls
    _crew_kind: ClassVar[type[Crew]] = Crew

    def __post_init__(self) -> None:
        self._check_options()
        self.lanes = lanes_of(self.queue, self.handler)
        for lane in self.lanes if self.backoff is not None else ():
            check_backoff(lane.mapping, self.backoff)
        self._running = Lock()
        self._stopping = self._runtime.flag()
        self._crew: Crew | None = None
        self._deadlines: Deadlines | None = None
        self._calls = self._calls_kind(None, self._delay_of, self.delete, self.options)
        self._sites = Sites(
            self, self._calls, self._runtime, self._stopping, self._notify, self._bind_within
        )
        self._calls.check(self.lanes)
        first: Any = self._sites.found[0] if self._sites.found else None
        if first is not None and first.name is None:
            self.engine = first.engine

    @staticmethod
    def _bind_within(given: Any) -> Engine | sessionmaker[Any]:
        """Return what is given for a database.

        Raises:
            ArgumentError: it is neither an Engine nor a sessionmaker.
        """
        if not isinstance(given, Engine | sessionmaker):
            raise ArgumentError(
                f"a Worker needs an Engine, or a sessionmaker, not {given!r}: it opens its own "
                "sessions, so give it the engine or the sessionmaker of yours; for an AsyncEngine "
                "use AsyncWorker"
            )
        return given

    def _check_options(self) -> None:
        check_durations(zero=False, none=True, longest=LONGEST_AGE, max_runtime=self.max_runtime)
        check_durations(zero=False, none=True, reap_every=self.reap_every)
        check_durations(zero=True, grace=self.grace, interval=self.interval)
        check_durations(zero=False, poll=self.poll, deadline=self.deadline)
        least, limit = self.concurrency, self.limit
        if not isinstance(least, int) or least < 1:
            raise ArgumentError(f"concurrency is a number of jobs, at least 1: {least!r}")
        if limit is not None and (not isinstance(limit, int) or limit < least):
            raise ArgumentError(
                f"limit is a number of jobs, at least concurrency ({least}): {limit!r}"
            )
        if not isinstance(self.delete, bool | None):
            raise ArgumentError(
                f"delete= takes True, False, or None for what the model says, not {self.delete!r}"
            )

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
        self._deadlines = self._sites.deadlines = Deadlines(None, self.deadline, _end_process)
        self._crew = self._crew_kind(self, self._sites)
        try:
            with self._deadlines, suppress(Stopped):
                self._sites.work(self._crew)
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
        try:
            self._sites.check(check)
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
        if (crew := self._crew) is not None:
            for loop in crew.loops:
                crew.wake(loop, 0.0)

    def _notify(self, loop: Loop | None = None) -> None:
        """Wake the supervisor, or the thread of a loop."""
        if self._crew is not None:
            with self._crew.lock:
                self._crew.notice(loop)

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
        """Why the worker cannot claim now, or None if its last turn has succeeded.

        If it has several databases, it names those where it cannot claim.
        """
        return "the worker is to stop" if self.stopping else self._sites.trouble

    def stopping_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[None]:
        """Have SIGTERM and SIGINT, or those given, stop the worker; main thread only."""
        chosen = signals or (signal.SIGTERM, signal.SIGINT)
        return signals_handled(lambda number, frame: self.stop(), *chosen)

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
