"""The lanes of a worker: each is a queue with the handler of its jobs.

Most workers have one lane. A worker with several queues claims from them in their order. With
several steps of a workflow, it claims from the later steps first: their jobs are begun already, so
work in progress is finished before new work begins. In every fourth turn, the lanes that were
passed over for longest come first, so a lane that never runs empty does not starve other lanes.

A handler returns the outcome of its job; an exception means that the job failed::

    def send(email: Email) -> Retry | Cancel | None:
        return None if deliver(email) else Retry(timedelta(minutes=5), reason="busy")
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import partial
from itertools import combinations
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import and_, or_, select, true
from sqlalchemy.orm import Session

from ..databases.clock import utc_now
from ..errors import ArgumentError, ClaimLost
from ..model.mapping import QueueMapping
from ..process import function_name
from ..queue import Handler, JobQueue, check_handler
from ..sessions.writer import writing
from ..strategies import AUTO, STRATEGIES
from ..verbs.backoff import LONGEST_DELAY
from ..verbs.finish import check_own_values

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """What a handler returns to have own columns written with the finish of its job.

    Attributes:
        values: as for :func:`sa_jobqueue.complete`, as in ``{Email.processed: True}``.
        then: the branch that a step of a workflow takes; None: its `then`.
    """

    values: Mapping[Any, Any] = field(default_factory=dict)
    then: str | None = None


@dataclass(frozen=True)
class Retry:
    """What a handler returns to have its job tried again.

    Attributes:
        in_: the delay; None: as after a failure.
        reason: goes to ``last_error``.
    """

    in_: timedelta | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Cancel:
    """What a handler returns to have its job cancelled; the reason goes to ``last_error``."""

    reason: str | None = None


@dataclass(frozen=True)
class Release:
    """What a handler returns to give its job back unclaimed; the attempt does not count.

    Attributes:
        until: nobody claims the job before this time, which has a time zone; None: it can be
            claimed at once, by this worker, too.
        reason: goes to the log.
    """

    until: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Failed:
    """The outcome of a job whose handler raised an exception.

    Attributes:
        error: the exception.
        retry_in: the delay before the next attempt, if one remains.
    """

    error: BaseException
    retry_in: timedelta | None = None


#: None: the job is done, or moves to the `then` of its step; a str: the status of its branch.
Finished: TypeAlias = "Done | str | None"

#: The job is not done, and what its transactional handler has written is rolled back.
NotDone: TypeAlias = Retry | Cancel | Release

Outcome: TypeAlias = "Finished | NotDone | Failed"

#: Stands for the outcome of a job whose handler has not returned: it cannot be finished.
NOT_YET = object()


def branch_of(outcome: Finished) -> str | None:
    """Return the status of the branch that an outcome takes; None: the usual one."""
    return outcome.then if isinstance(outcome, Done) else outcome


def text_of(outcome: NotDone | Failed) -> str | BaseException | None:
    """Return what goes to ``last_error``."""
    return outcome.error if isinstance(outcome, Failed) else outcome.reason


def _refusal(outcome: NotDone, mapping: QueueMapping) -> str | None:
    """Say what is wrong with what a handler of this class's jobs has returned; None: nothing."""
    reason: Any = outcome.reason
    match outcome:
        case _ if not isinstance(reason, str | None):
            return f"a reason is a str, not {reason!r}"
        case Retry() if not mapping.has("attempts"):
            return f"{mapping} counts no attempts, which Retry(..) needs: add RetryMixin"
        case Release(until=datetime()) if not mapping.has("run_at"):
            return f"Release(until=) needs the column run_at: add RetryMixin to {mapping}"
        case Retry(in_=timedelta() as delay) if timedelta(0) <= delay <= LONGEST_DELAY:
            return None
        case Retry(in_=None) | Release(until=None | datetime(tzinfo=tzinfo())) | Cancel():
            return None
        case Retry():
            return f"Retry(in_=) takes a timedelta from zero to ten years: {outcome!r}"
    return f"Release(until=) takes a datetime with a time zone: {outcome!r}"


#: What tells that a handler has returned its work, and has not done it.
_UNRUN = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)

#: In one of so many turns, the lanes that were passed over for longest come first.
FAIR_EVERY = 4


class Lane(Generic[T]):
    """A queue with the handler of its jobs.

    Attributes:
        declared_queue: as `queue`, also while a workflow may still be declared.
        mapping: of the class of its jobs.
        status_key: the name of the status attribute.
        handler: called with each job; if `transactional`, with a session and the job.
        is_async: whether the handler is ``async def``, or an object whose ``__call__`` is.
        is_plain: whether it is a function that is not. A decorated function and a callable object
            may return an awaitable, so they are neither.
        timeout: how long the handler may run; None: no limit.
        batch: the handler gets a list of at most so many jobs; None: it gets one job.
    """

    #: Whether its handler may return a branch. Of several steps, the last one claims first.
    is_step = False

    def __init__(self, queue: JobQueue[T], declared: Handler) -> None:
        check_handler(declared)
        self.declared_queue = queue
        self.mapping = queue.mapping
        self.status_key = queue.mapping.attributes["status"]
        self.handler = function = declared.function
        self.transactional, self.timeout = declared.transactional, declared.timeout
        self.batch = declared.batch
        while isinstance(function, partial):
            function = function.func
        function = getattr(function, "__func__", function)  # of a method
        awaited = inspect.iscoroutinefunction
        self.is_async = awaited(function) or awaited(type(function).__call__)
        self.is_plain = inspect.isfunction(function) and not awaited(inspect.unwrap(function))
        self._has_warned = False

    @property
    def queue(self) -> JobQueue[T]:
        """The queue that jobs are claimed from."""
        return self.declared_queue

    @property
    def whole(self) -> Lane[T]:
        """The lane that its jobs are claimed by."""
        return self

    @property
    def parts(self) -> Sequence[Lane[T]]:
        """The lanes that its jobs are handled in, one for each handler."""
        return (self,)

    def part_of(self, job: T) -> Lane[T]:
        """Return the lane that a job is handled in."""
        return self

    @property
    def size(self) -> int:
        """The most jobs that one call of the handler gets."""
        return self.batch or 1

    def outcomes_of(self, returned: Any, jobs: Sequence[T]) -> list[Finished | NotDone | Exception]:
        """Return the outcome of each job whose handler has returned something.

        Raises:
            ArgumentError: as for :meth:`outcome_of`; or it returned an outcome of another job.
        """
        if self.batch is None or not isinstance(returned, Mapping):
            return [self.outcome_of(returned)] * len(jobs)
        given = {id(job): outcome for job, outcome in returned.items()}
        own = [given.pop(id(job), None) for job in jobs]
        if given:
            raise ArgumentError(
                "a handler of batches returns a mapping whose keys are jobs of its list, and "
                f"{function_name(self.handler)} returned others: {[*returned]!r:.200}"
            )
        return [each if isinstance(each, Exception) else self.outcome_of(each) for each in own]

    def outcome_of(self, returned: Any) -> Finished | NotDone:
        """Return the outcome of a job whose handler has returned something.

        A value that a worker does not understand is ignored, with one warning for each lane.

        Raises:
            ArgumentError: the handler's work has never run, or its outcome cannot be written.
            InvalidTransition: a step does not lead to this status.
        """
        match returned:
            case None:
                return None
            case Done(values, then):
                check_own_values(self.mapping, "complete", values)
                if then is not None:
                    self.check_branch(then)
                return returned if values else then
            case str() if self.is_step:
                self.check_branch(returned)
                return returned
            case Retry() | Release() | Cancel():
                if (refusal := _refusal(returned, self.mapping)) is not None:
                    raise ArgumentError(refusal)
                return returned
        if any(is_unrun(returned) for is_unrun in _UNRUN):
            if inspect.iscoroutine(returned):
                returned.close()  # else Python warns that it was never awaited
            raise ArgumentError(
                f"the handler returned {returned!r}, and its work has not run: use an AsyncWorker "
                "for an async def handler, and do not use yield in a handler"
            )
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s returned %.200r, which a worker does not understand. Its job is done: return "
                "None, Done(..), Retry(..), Release(..) or Cancel(..)",
                function_name(self.handler),
                returned,
            )
        return None

    def check_branch(self, then: str) -> None:
        """Refuse a status that no job of the lane goes to.

        Raises:
            ArgumentError: only steps of a workflow have branches.
        """
        raise ArgumentError(
            f"Done(then={then!r}) names a branch, and only a step of a workflow has one: its queue "
            "says what a done job becomes"
        )

    def finish(self, session: Session, handled: Sequence[Any], *, delete: bool | None) -> list[Any]:
        """Write the outcomes of jobs; return those whose claim was lost."""
        lost: list[Any] = []
        by_branch: dict[str | None, list[Any]] = {}
        own: dict[int, Mapping[Any, Any]] = {}
        for in_hand in handled:
            outcome: Outcome = in_hand.outcome
            if isinstance(outcome, Failed | NotDone):
                lost += self.finish_otherwise(session, in_hand.job, outcome, text_of(outcome))
                continue
            if isinstance(outcome, Done):
                own[id(in_hand.job)] = outcome.values
            by_branch.setdefault(branch_of(outcome), []).append(in_hand)
        values = (lambda job: own.get(id(job), {})) if own else None
        for then, done in by_branch.items():
            complete = partial(self.complete, session, jobs_of(done), then)
            lost += claims_lost_by(partial(complete, delete=delete, values=values))
        return lost

    def complete(
        self, session: Session, jobs: Any, then: str | None, *, delete: bool | None, values: Any
    ) -> None:
        """Finish jobs whose handlers returned None or Done; `then` is a branch of a step."""
        branch = {} if then is None else {"then": then}
        self.queue.complete(session, jobs, delete=delete, values=values, **branch)

    def finish_otherwise(
        self, session: Session, job: T, outcome: NotDone | Failed, text: str | BaseException | None
    ) -> list[Any]:
        """Write the outcome of a job that is not done; return the job if its claim was lost.

        Args:
            text: goes to ``last_error``.
        """
        queue: Any = self.queue
        match outcome:
            case Cancel():
                write = partial(queue.cancel_claimed, reason=text)
            case Release(until=until):
                own = {self.mapping.attribute("run_at"): until} if until is not None else None
                write = partial(queue.release, values=own)
            case Failed(retry_in=delay) | Retry(in_=delay):
                write = partial(queue.fail, error=text, retry_in=delay)
        return claims_lost_by(partial(write, session, job))

    def has_left(self, session: Session, queue: JobQueue[T]) -> bool:
        """Tell whether a drain waits for a job, by a read of the database that is written to.

        Args:
            queue: the lane's own, perhaps without the rows that are passed over.
        """
        mapping = self.mapping
        left = select(*mapping.key_attributes).where(
            mapping.has_status(queue.ready), *queue.plan.spec.where
        )
        if mapping.has("run_at"):
            tried = [mapping.attribute("attempts") > 0] if mapping.has("attempts") else []
            left = left.where(or_(mapping.attribute("run_at") <= utc_now(), *tried))
        with writing(session, mapping, reads=True) as writer:
            return writer.rows(left.limit(1)).first() is not None


def jobs_of(done: Sequence[Any]) -> Any:
    """Return the jobs, or their claim if they are all its jobs: it costs less to finish."""
    claim, *others = {in_hand.claim for in_hand in done}
    if claim is not None and not others and len(claim) == len(done):
        return claim
    return [in_hand.job for in_hand in done]


class LaneOrder:
    """The order in which a worker claims from its lanes; each iteration is one turn."""

    def __init__(self, lanes: Sequence[Lane[Any]]) -> None:
        steps = [lane for lane in lanes if lane.is_step]
        self._usual = [lane for lane in lanes if not lane.is_step] + steps[::-1]
        self._oldest_first = [*self._usual]
        self._turn = 0

    def __iter__(self) -> Iterator[Lane[Any]]:
        self._turn += 1
        for lane in self._usual if self._turn % FAIR_EVERY else [*self._oldest_first]:
            self._oldest_first.remove(lane)
            self._oldest_first.append(lane)
            yield lane


def lanes_of(
    queue: JobQueue[T] | Lane[T] | Iterable[JobQueue[Any] | Lane[Any]],
    handler: Callable[[T], Any] | None,
) -> tuple[Lane[T], ...]:
    """Return the lanes of a worker.

    Raises:
        ArgumentError: no queue, a queue without a handler, a handler beside those of lanes,
            two queues with the same jobs, or a strategy whose claims write nothing.
    """
    several = isinstance(queue, Iterable) and not isinstance(queue, type)
    given: Any = queue if several else (queue,)
    queues: tuple[Any, ...] = tuple(given)
    if not queues or not all(isinstance(each, JobQueue | Lane) for each in queues):
        raise ArgumentError(
            f"a worker needs JobQueues, or steps of a workflow, not {queue!r}: for a class, write "
            "JobQueue(Class)"
        )
    if handler is not None and not isinstance(queue, JobQueue):
        raise ArgumentError(
            "give a handler only with one queue that has none: steps have their own, and several "
            "queues declare theirs by @queue.handler"
        )
    lanes = tuple(each if isinstance(each, Lane) else lane_of(each, handler) for each in queues)
    for lane in lanes:
        strategy = lane.queue.plan.strategy
        if strategy != AUTO and not STRATEGIES[strategy].marks:
            raise ArgumentError(
                f"a worker commits between claim and finish, and a claim by {strategy!r} ends with "
                "the commit: use another strategy"
            )
    for one, other in combinations([lane.queue for lane in lanes], 2):
        criteria = [and_(true(), *each.plan.spec.where) for each in (one, other)]
        jobs = (one.mapping.mapper, one.ready) == (other.mapping.mapper, other.ready)
        if jobs and criteria[0].compare(criteria[1]):
            raise ArgumentError(
                f"{one!r} and {other!r} claim the same jobs, and either handler would get any of "
                "them: give each JobQueue criteria of its own"
            )
    return lanes


def lane_of(queue: JobQueue[T], handler: Callable[[T], Any] | None = None) -> Lane[T]:
    """Return the lane of a queue that has a handler, or of one that has none with this handler.

    Raises:
        ArgumentError: it has none, or one already.
    """
    found = queue.handled_by
    if handler is not None and found is not None:
        raise ArgumentError(
            f"{queue!r} has a handler already: {function_name(found.function)}. Give the worker no "
            "handler, or another JobQueue"
        )
    declared = found if handler is None else Handler(handler)
    if declared is None:
        raise ArgumentError(
            f"{queue!r} has no handler: declare one with @queue.handler, or give one with this one "
            "queue (in a command, by --handler)"
        )
    return Lane(queue, declared)


def claims_lost_by(finish: Callable[[], None]) -> list[Any]:
    """Call `finish`; return the jobs whose claim was lost: their new owners finish them."""
    try:
        finish()
    except ClaimLost as lost:
        return list(lost.lost)
    return []
