"""JobQueue: what is claimed and how, stated once; its statements are built once.

::

    outbox = JobQueue(Email, Email.kind == "invoice", strategy="skip_locked")

    emails = outbox.claim(session, owner="mailer-1", limit=100)
    session.commit()
    ...
    outbox.complete(session, emails)
    session.commit()

The functions of the package are the same verbs, without a JobQueue. Keep the JobQueue where you
claim often: a claim with it takes about a millisecond less Python.

A new verb is a function in ``verbs/``, and a method here and in ``asyncio/``: the method has the
function's parameters, except those that the queue states already. ``tests/unit/test_verbs.py``
names what is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from sqlalchemy import ColumnElement, Executable, Row
from sqlalchemy.engine import Dialect

from .counts.position import position_in
from .counts.stats import QueueStats, count_jobs, overview
from .databases import database_of_dialect, dialect_of
from .errors import ArgumentError
from .fence.claim import Claim, jobs_with_keys
from .model.keys import plain_queue
from .model.mapping import QueueMapping, mapping_of, word_of
from .model.status import CANCELLED, CLAIMED, DONE, FAILED, UNCLAIMED
from .model.transitions import ended, retried
from .owners.owner import Owner
from .process import function_name
from .sessions.writer import AnyConnection, AnySession
from .strategies import AUTO
from .verbs import finish, manage
from .verbs.backoff import LONGEST_AGE, Backoff, check_backoff, check_durations
from .verbs.claim import claim_plan
from .verbs.enqueue import insert_jobs
from .verbs.finish import OwnValues
from .verbs.reap import Reaped, reap_claims
from .verbs.turn import turn_in_one

if TYPE_CHECKING:
    from .rates import Rate

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


@dataclass(frozen=True)
class Handler:
    """A function that handles the jobs of a queue.

    Attributes:
        function: called with each job, or with a session and a job.
        transactional: it is called with a session, whose commit finishes the job, too.
        timeout: how long it may run; None: without limit.
        batch: it is called with a list of at most so many jobs; None: with one job.
    """

    function: Callable[..., Any]
    transactional: bool = False
    timeout: timedelta | None = None
    batch: int | None = None


class JobQueue(Generic[T]):
    """Some of the jobs of a class, how they are claimed, and the verbs for them.

    A job is in the queue as long as it fulfils the criteria and has one of the statuses.

    Args:
        entity: a mapped class with JobMixin; with the strategies held and advisory, any
            mapped class.
        where: criteria, joined by AND.
        order_by: replaces the claim order; the primary key always ends it.
        lease: how long a claim of an unknown owner is left alone; by default
            ``__queue_args__["lease"]``, else 10 minutes.
        ready: the status that jobs are claimed from, a JobStatus or a word of your own.
        during: the status of a claimed job.
        then: the status of a completed job.
        strategy: ``"auto"``, or the name of a strategy.
        strict_order: claims go in exact order: one claimer at a time, until its
            transaction ends. Needs ``strategy="auto"``.
        backoff: the delay of a failed job, from its number of attempts; needs
            RetryMixin. None: the default, ``ExponentialBackoff()``.
        serial_by: an attribute, or a tuple of several, whose value is a key: of each
            key one job is claimed at a time, the oldest first.
        limit_by: an attribute, or a tuple of several, with how many jobs of one key may be
            claimed at a time.
        rate: how many jobs may begin in a time, by all workers together; the metadata needs
            :func:`sa_jobqueue.rates.rate_table`.
        rate_by: an attribute, or a tuple of several, whose value is a key with a rate of its own.
        listen: a channel of PostgreSQL: a NOTIFY on it wakes workers, such as that of a trigger
            of your own. Other databases ignore it.
        fair_by: an attribute, or a tuple of several, whose value is a key: keys that have due jobs
            take turns, so that the backlog of one holds up no other. It needs an index of
            ``__queue_args__["per_key"]``.

    Raises:
        ArgumentError: the arguments make no queue.
    """

    def __init__(
        self,
        entity: type[T],
        *where: ColumnElement[bool],
        order_by: Any = (),
        lease: timedelta | None = None,
        ready: str = UNCLAIMED,
        during: str = CLAIMED,
        then: str = DONE,
        strategy: str = AUTO,
        strict_order: bool = False,
        backoff: Backoff | None = None,
        serial_by: Any = None,
        limit_by: Mapping[Any, int] | None = None,
        rate: Rate | None = None,
        rate_by: Any = None,
        listen: str | None = None,
        fair_by: Any = None,
    ) -> None:
        self.entity = entity
        self.plan = claim_plan(
            entity,
            *where,
            order_by=order_by,
            ready=ready,
            during=during,
            strategy=strategy,
            strict=strict_order,
            serial_by=serial_by,
            limit_by=limit_by,
            rate=rate,
            rate_by=rate_by,
            fair_by=fair_by,
        )
        #: Where the queue's columns are in the entity.
        self.mapping = self.plan.mapping
        #: The status of an unclaimed job, and that of a claimed one, in the table's own words.
        self.ready, self.during = self.plan.spec.ready, self.plan.spec.during
        self.then = then
        self.backoff = backoff
        if backoff is not None:
            check_backoff(self.mapping, backoff)
        self.lease = self.mapping.args.lease if lease is None else lease
        check_durations(zero=False, longest=LONGEST_AGE, lease=self.lease)
        if listen is not None and not (isinstance(listen, str) and 0 < len(listen.encode()) < 64):
            raise ArgumentError(
                f"listen= takes the name of a channel, 1 to 63 bytes, not {listen!r}: PostgreSQL "
                "cuts longer names"
            )
        #: The channel whose notifications wake workers, or None if the user has none of their own.
        self.listen = listen
        #: What :meth:`handler` has declared.
        self.handled_by: Handler | None = None

    def __repr__(self) -> str:
        strict = ", strict_order=True" if self.plan.spec.strict else ""
        spec = self.plan.spec
        limit = f", {spec.key_limit.argument}" if spec.key_limit else ""
        rate = "" if spec.rate is None else f", rate={spec.rate}"
        fair = f", fair_by=({', '.join(by.key for by in spec.fair_by)})" if spec.fair_by else ""
        rest = f"{strict}{limit}{rate}{fair}"
        return f"<JobQueue {self.mapping}, strategy={self.plan.strategy!r}{rest}>"

    # -- who handles its jobs -------------------------------------------

    @overload
    def handler(self, function: Callable[[T], R], /) -> Callable[[T], R]: ...
    @overload
    def handler(
        self, /, *, transactional: Literal[False] = False, timeout: timedelta | None = None
    ) -> Callable[[Callable[[T], R]], Callable[[T], R]]: ...
    @overload
    def handler(
        self, /, *, transactional: Literal[True], timeout: timedelta | None = None
    ) -> Callable[[Callable[[Any, T], R]], Callable[[Any, T], R]]: ...
    @overload
    def handler(
        self,
        /,
        *,
        batch: int,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> Callable[[Callable[[list[T]], R]], Callable[[list[T]], R]]: ...
    @overload
    def handler(
        self, /, *, batch: int, transactional: Literal[True], timeout: timedelta | None = None
    ) -> Callable[[Callable[[Any, list[T]], R]], Callable[[Any, list[T]], R]]: ...
    def handler(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        transactional: bool = False,
        timeout: timedelta | None = None,
        batch: int | None = None,
    ) -> Any:
        """Have workers on this queue call a function with each job; a decorator.

        It gets the job detached. With ``transactional=True`` it gets a session and the job in
        it: what it writes there and the job's finish are one commit, or none.

        After `timeout` the attempt has failed. An ``async def`` handler is cancelled then. A plain
        one cannot be stopped: its worker finishes what else it has in hand, and its run ends
        with :class:`sa_jobqueue.worker.HandlerTimeout`, so that a supervisor replaces it.

        With ``batch=100`` it gets a list of up to 100 jobs of one claim. What it returns or raises
        is the outcome of each of them; a mapping of jobs to outcomes gives some jobs their own.
        From its third attempt on, a job is alone in its list.

        Raises:
            ArgumentError: the queue has a handler already, `timeout` is not longer than zero,
                `batch` is less than 1, or the handler is no function or takes other arguments.
        """
        check_durations(zero=False, none=True, timeout=timeout)
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise ArgumentError(f"batch is a number of jobs, at least 1: {batch!r}")

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            declared = Handler(function, transactional, timeout, batch)
            check_handler(declared)
            if self.handled_by is not None:
                there = function_name(self.handled_by.function)
                raise ArgumentError(
                    f"{self!r} has a handler already: {there}. Other jobs need a JobQueue "
                    "with criteria of its own"
                )
            self.handled_by = declared
            return function

        return declare if function is None else declare(function)

    # -- new jobs -------------------------------------------------------

    def enqueue(
        self,
        session: AnySession,
        rows: Iterable[Mapping[str, Any]],
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        skip_duplicates: bool = False,
        update_duplicates: Any = None,
    ) -> int | None:
        """Insert jobs with the queue's `ready` status; see :func:`sa_jobqueue.enqueue`.

        The criteria are not checked: a row that does not fulfil them is inserted, and is a
        job of another queue.
        """
        mapping, duplicates = self._mapping_of_jobs, (skip_duplicates, update_duplicates)
        return insert_jobs(session, mapping, self.ready, rows, priority, run_at, *duplicates)

    def every(
        self,
        cron: str,
        *,
        name: str,
        timezone: str = "UTC",
        values: Mapping[str, Any] | None = None,
        missed: str = "once",
        revision: int = 1,
        database: str | None = None,
    ) -> None:
        """Declare a schedule, which inserts a job of this queue at each tick.

        A worker, or ``Schedules.declare()``, writes it to the table.

        Args:
            cron: such as ``"0 7 * * mon-fri"``; with six fields the first is the seconds.
            name: the name of the schedule in the table.
            timezone: the time zone of the expression.
            values: the attributes of the job, as JSON has them; dates, times and UUIDs as ISO text.
            missed: what becomes of ticks while no scheduler ran: ``"skip"``, ``"once"`` (one job
                for all) or ``"all"``.
            revision: raise it with each change of the declaration.
            database: the only one where it ticks, of several that a worker has by name; None: it
                ticks in each.

        Raises:
            ArgumentError: the arguments make no schedule, or cronsim is not installed.
        """
        from .schedules.declared import declare_every

        declare_every(
            self,
            cron,
            name=name,
            timezone=timezone,
            values=values,
            missed=missed,
            revision=revision,
            database=database,
        )

    # -- claims ---------------------------------------------------------

    def claim(
        self,
        session: AnySession,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        options: Sequence[Any] = (),
    ) -> Claim[T]:
        """Claim up to `limit` jobs; see :func:`sa_jobqueue.claim`."""
        return self.plan.claim(session, owner=owner, limit=limit, options=options)

    def claim_rows(
        self,
        session: AnyConnection,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
    ) -> Claim[Row[Any]]:
        """Claim plain rows: the table's columns, without entities.

        You can pass a Connection instead of a Session, which takes less time.
        Finish the Claim as a whole, or single rows by ``claim.fences[i]``.
        """
        return self.plan.claim(session, owner=owner, limit=limit, rows=True)

    def claimed_by(self, session: AnySession, owner: str | int | Owner) -> Claim[T]:
        """Return an owner's claims of this queue; see :func:`sa_jobqueue.claimed_by`."""
        return self.plan.claimed_by(session, owner)

    def renew(self, session: AnyConnection, jobs: Any) -> None:
        """Start the lease again; see :func:`sa_jobqueue.renew`."""
        finish.renew(session, jobs)

    def reap(
        self,
        session: AnySession,
        *,
        lease: timedelta | None = None,
        max_runtime: timedelta | None = None,
        limit: int | None = None,
    ) -> Reaped:
        """Reap claims of this queue: from its `during` to its `ready`.

        Only the criteria on the ``equality`` columns count, since the values of other
        columns may have changed since the claim. `lease` is the queue's own by
        default; see :func:`sa_jobqueue.reap`.
        """
        lease = self.lease if lease is None else lease
        return reap_claims(session, self.plan.spec, lease, max_runtime, limit)

    # -- finishing claims -----------------------------------------------

    def turn(
        self,
        session: AnyConnection,
        finished: Any,
        *,
        owner: str | int | Owner | None = None,
        limit: int = 1,
        delete: bool | None = None,
        rows: bool = False,
    ) -> Claim[Any]:
        """Complete one batch and claim the next, in one transaction of the caller's.

        One commit for each batch instead of two. With ``rows=True`` you can pass a Connection.
        When you retry the transaction after a deadlock, give the same `finished` again: its
        jobs are finished, not run again.

        Raises:
            ClaimLost: claims of `finished` were lost; nothing was claimed.
        """
        if isinstance(finished, Iterator):  # it may take two verbs, and each reads all jobs
            finished = list(finished)
        claimed = turn_in_one_go(
            self, session, finished, owner=owner, limit=limit, delete=delete, rows=rows
        )
        if claimed is not None:
            return claimed
        self.plan.begin(session, rows=rows)
        self.complete(session, finished, delete=delete)
        return self.plan.claim(session, owner=owner, limit=limit, rows=rows)

    def complete(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        delete: bool | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Finish jobs with the queue's `then`; see :func:`sa_jobqueue.complete`."""
        finish.complete(session, jobs, delete=delete, then=self.then, values=values)

    def fail(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        error: str | BaseException | None = None,
        retry_in: timedelta | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Report failed jobs; see :func:`sa_jobqueue.fail`.

        Without `retry_in` the queue's backoff gives the delay.
        """
        finish.fail(
            session,
            jobs,
            error=error,
            retry_in=retry_in,
            backoff=self.backoff,
            ready=self.ready,
            values=values,
        )

    def release(
        self, session: AnyConnection, jobs: Any, *, values: OwnValues | None = None
    ) -> None:
        """Give jobs back; see :func:`sa_jobqueue.release`."""
        finish.release(session, jobs, ready=self.ready, values=values)

    def cancel_claimed(
        self,
        session: AnyConnection,
        jobs: Any,
        *,
        reason: str | None = None,
        values: OwnValues | None = None,
    ) -> None:
        """Cancel jobs that we have claimed; see :func:`sa_jobqueue.cancel_claimed`."""
        finish.cancel_claimed(session, jobs, reason=reason, values=values)

    # -- jobs that nobody has claimed -----------------------------------

    def cancel(self, session: AnySession, jobs: Any) -> list[T]:
        """Cancel jobs that have the queue's `ready` status; return those that were cancelled.

        Jobs in another status are left alone; the criteria are not checked. See
        :func:`sa_jobqueue.cancel`.

        Raises:
            ArgumentError: an entity that is not in the database, or of another table.
        """
        return manage.change(
            session,
            self._checked(jobs),
            "cancel",
            ended,
            leaving=self.statuses_left_by("cancel"),
            to=CANCELLED,
            limited=bool(self.plan.spec.key_limit),
        )

    def retry(self, session: AnySession, jobs: Any) -> list[T]:
        """Take finished jobs to the queue's `ready` status again; return those that were taken.

        A finished job is failed, cancelled, or has the queue's `then` status, unless other
        queues claim from there. The criteria are not checked. See :func:`sa_jobqueue.retry`.

        Raises:
            ArgumentError: an entity that is not in the database, or of another table.
        """
        jobs, leaving = self._checked(jobs), self._finished_words
        return manage.change(session, jobs, "retry", retried, leaving=leaving, to=self.ready)

    def reprioritize(self, session: AnySession, jobs: Any, priority: int) -> list[T]:
        """Give jobs that have the queue's `ready` status another priority.

        Returns those that were changed; the criteria are not checked. See
        :func:`sa_jobqueue.reprioritize`.

        Raises:
            ArgumentError: a class without PriorityMixin, a priority that is no small
                integer, or an entity of another table.
        """
        return manage.reprioritize_jobs(
            session, self._checked(jobs), priority, self.statuses_left_by("reprioritize")
        )

    def prune(
        self,
        session: AnySession,
        *,
        older_than: timedelta,
        statuses: Sequence[str] | None = None,
        limit: int = manage.PRUNE_LIMIT,
    ) -> int:
        """Delete finished rows of this queue, one bounded batch; return how many.

        Only rows that fulfil the queue's criteria now; see :func:`sa_jobqueue.prune`.

        Args:
            statuses: which finished rows; None: those with the queue's `then` status.
        """
        statuses = (self.then,) if statuses is None else statuses
        mapping, where = self._mapping_of_jobs, self.plan.spec.where
        unfinished = (self.ready, self.during)
        return manage.prune_jobs(session, mapping, older_than, statuses, limit, where, unfinished)

    # -- looking at the queue -------------------------------------------

    def count_by_status(self, session: AnySession) -> dict[str, int]:
        """Count this queue's jobs by status, in the table's own words.

        The statuses are the queue's `ready`, `during` and `then`, failed and cancelled; a
        status without jobs is 0. It counts the jobs that fulfil the queue's criteria now, and
        reads all rows of the class, as :func:`sa_jobqueue.count_by_status` does.
        """
        counts = count_jobs(session, self._mapping_of_jobs, *self.plan.spec.where)
        waits = self.statuses_left_by("cancel")
        words = (*waits, *self.plan.spec.in_progress, *self._ends)
        return {word: counts.get(word, 0) for word in words}

    def stats(self, session: AnySession) -> QueueStats:
        """Describe this queue as it is now; see :func:`sa_jobqueue.stats`.

        It counts the jobs in its `ready` and `during` that fulfil its criteria now.
        """
        return overview(session, [self])[0]

    def position(self, session: AnySession, job: Any) -> int | None:
        """Return the position of a job in this queue; see :func:`sa_jobqueue.position`."""
        return position_in(session, self, job)

    def statuses_left_by(self, verb: str) -> tuple[str, ...]:
        """Return the statuses that jobs of this queue have before a verb, in the table's words.

        Args:
            verb: ``cancel``, ``reprioritize``, ``release`` or ``retry``.
        """
        if verb == "retry":
            return self._finished_words
        if verb == "release":
            return self.plan.spec.in_progress
        waiting = self.mapping.waiting if self.ready == self.mapping.word(UNCLAIMED) else ()
        return (self.ready, *waiting)

    # -- for the verbs --------------------------------------------------

    @property
    def _mapping_of_jobs(self) -> QueueMapping:
        """The mapping of a class with JobMixin; without it only claims are possible.

        Raises:
            ArgumentError: the class has no JobMixin.
        """
        return mapping_of(self.mapping.mapper)

    def _checked(self, jobs: Any) -> list[Any]:
        """Return jobs as a list.

        Raises:
            ArgumentError: a job of another table, or that is not in the database.
        """
        return [job for job, _, _ in jobs_with_keys(jobs, self.mapping)]

    @property
    def _finished_words(self) -> tuple[str, ...]:
        """The statuses of finished jobs that no queue of the class claims from."""
        mapping = self.mapping
        unfinished = {self.ready, self.during, *mapping.ready, *mapping.during}
        return tuple(word for word in self._ends if word not in unfinished)

    @property
    def _ends(self) -> tuple[str, ...]:
        """The statuses that a claim of this queue can end in, besides `ready`."""
        return tuple(word_of(self.mapping, status) for status in (self.then, FAILED, CANCELLED))


def job_queue_of(queue: Any) -> JobQueue[Any]:
    """Return the JobQueue of a mapped class or of a workflow's step; a JobQueue as it is.

    Raises:
        ArgumentError: it is no queue, or its class has no JobMixin, and so no status to show.
    """
    found = plain_queue(queue)
    made = found if isinstance(found, JobQueue) else JobQueue(found)
    mapping_of(made.mapping.mapper)
    return made


def claim_statements(
    queue: JobQueue[Any] | type[Any],
    *where: ColumnElement[bool],
    dialect: str | Dialect,
    order_by: Any = (),
    strategy: str = AUTO,
) -> list[Executable]:
    """Return the statements that claim() runs, in order, to print or EXPLAIN.

    Args:
        queue: a JobQueue, or a mapped class. A JobQueue states `where`, `order_by` and
            `strategy` itself: give them for a class only.
        dialect: an SQLAlchemy dialect (a connected one knows the server's
            version), or a name such as ``"postgresql"`` for the newest version.

    Raises:
        UnsupportedDatabase: no such claim on this database.
        ArgumentError: criteria, an order or a strategy beside a JobQueue.
    """
    if not isinstance(queue, JobQueue):
        queue = JobQueue(queue, *where, order_by=order_by, strategy=strategy)
    elif where or strategy != AUTO or not (isinstance(order_by, tuple) and order_by == ()):
        raise ArgumentError(
            f"{queue!r} has its own criteria, order and strategy: give only dialect= with it, or "
            "give the class"
        )
    return queue.plan.strategy_on(database_of_dialect(dialect_of(dialect))).statements()


def turn_in_one_go(
    queue: JobQueue[Any], session: AnyConnection, finished: Any, **arguments: Any
) -> Claim[Any] | None:
    """Do a turn in one go; see :func:`sa_jobqueue.verbs.turn.turn_in_one`.

    Returns:
        The claim, or None if this turn takes two verbs and nothing was done.
    """
    # A subclass or a listener may have replaced one of the verbs.
    for verb in ("complete", "claim"):
        if getattr(getattr(queue, verb), "__func__", None) is not getattr(JobQueue, verb):
            return None
    return turn_in_one(queue.plan, session, finished, then=queue.then, **arguments)


def check_handler(declared: Handler) -> None:
    """Refuse what is no function, and functions with other arguments than a worker gives.

    A mistake in its arguments would otherwise cost each job all of its attempts.

    Raises:
        ArgumentError: it says what the handler is called with.
    """
    handler: Any = declared.function
    if not callable(handler):
        raise ArgumentError(
            f"a handler is a function, not {handler!r}: write @queue.handler above it, or "
            "@queue.handler(timeout=..)"
        )
    try:
        # Not what a decorator has wrapped: the decorator may add arguments of its own.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # built-in functions may have none
        return
    given = ["job" if declared.batch is None else "jobs"]
    if declared.transactional:
        given.insert(0, "session")
    try:
        signature.bind(*given)
    except TypeError as error:
        raise ArgumentError(
            f"{function_name(handler)} takes {signature}, and a worker calls it with "
            f"({', '.join(given)}): {error}; a handler gets the job alone, with batch= a list of "
            "jobs, and with transactional=True a session before it"
        ) from error
