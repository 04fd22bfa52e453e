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

import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from inspect import iscoroutinefunction, isfunction, ismethod, unwrap
from itertools import combinations
from typing import Any, Final, Generic, TypeAlias, TypeVar

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from ..dialects.clock import utc_now
from ..errors import ArgumentError, ClaimLost
from ..model.mapping import QueueMapping
from ..process import function_name
from ..queue import JobQueue, check_handler
from ..sessions.writer import writing
from ..strategies import AUTO, STRATEGIES
from ..verbs.backoff import LONGEST_DELAY
from ..verbs.finish import OwnValues, check_own_values

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


class NotYet(Enum):
    """Stands for the outcome of a job whose handler has not returned: it cannot be finished."""

    NOT_YET = auto()


NOT_YET: Final = NotYet.NOT_YET


def refuse_unrun(returned: Any) -> None:
    """Refuse a value that shows that the handler's work has not run.

    Raises:
        ArgumentError: the value must be awaited, or iterated over.
    """
    if not isinstance(returned, Awaitable | Generator | AsyncGenerator):
        return
    if isinstance(returned, Coroutine):
        returned.close()  # else Python warns that it was never awaited
    raise ArgumentError(
        f"the handler returned {returned!r}, and its work has not run: use an AsyncWorker for an "
        "async def handler, and do not use yield in a handler"
    )


def branch_of(outcome: Finished) -> str | None:
    """Return the status of the branch that an outcome takes; None: the usual one."""
    return outcome.then if isinstance(outcome, Done) else outcome


def check_outcome(outcome: Done | NotDone, mapping: QueueMapping) -> None:
    """Refuse what a handler of this class's jobs cannot return.

    Raises:
        ArgumentError: a value of `outcome` is wrong, or needs a mixin that the class lacks.
    """
    if isinstance(outcome, Done):
        check_own_values(mapping, "complete", outcome.values)
        return
    if not isinstance(outcome.reason, str | None):
        raise ArgumentError(f"a reason is a str, not {outcome.reason!r}")
    if isinstance(outcome, Release) and outcome.until is not None:
        _check_until(outcome, mapping)
    if not isinstance(outcome, Retry):
        return
    if not mapping.has("attempts"):
        raise ArgumentError(f"{mapping} counts no attempts, which Retry(..) needs: add RetryMixin")
    if outcome.in_ is None:
        return
    if not isinstance(outcome.in_, timedelta) or not timedelta(0) <= outcome.in_ <= LONGEST_DELAY:
        raise ArgumentError(f"Retry(in_=) takes a timedelta from zero to ten years: {outcome!r}")


def _check_until(outcome: Release, mapping: QueueMapping) -> None:
    until = outcome.until
    if not isinstance(until, datetime) or until.tzinfo is None:
        raise ArgumentError(f"Release(until=) takes a datetime with a time zone: {outcome!r}")
    if not mapping.has("run_at"):
        raise ArgumentError(f"Release(until=) needs the column run_at: add RetryMixin to {mapping}")


def is_awaited(handler: Callable[..., Any]) -> bool:
    """Tell whether a handler is ``async def``, or an object whose ``__call__`` is."""
    function = _function_of(handler)
    call = None if isinstance(function, type) else function.__call__
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def is_plain(handler: Callable[..., Any]) -> bool:
    """Tell whether a handler is a function that is not ``async def``.

    A decorated function and a callable object are not known to be plain: both may return an
    awaitable.
    """
    function = _function_of(handler)
    return isfunction(function) and not iscoroutinefunction(unwrap(function))


def _function_of(handler: Callable[..., Any]) -> Any:
    """Return the function that a partial or a method finally calls."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler.__func__ if ismethod(handler) else handler


#: In one of so many turns, the lanes that were passed over for longest come first.
FAIR_EVERY = 4


class Lane(Generic[T]):
    """A queue with the handler of its jobs.

    Attributes:
        mapping: of the class of its jobs.
        status_key: the name of the status attribute.
        handler: called with each job; if `transactional`, with a session and the job.
        timeout: how long the handler may run; None: no limit.
    """

    #: Whether of several such lanes the last one claims first.
    last_first = False

    def __init__(
        self,
        queue: JobQueue[T],
        handler: Callable[..., Any],
        *,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> None:
        check_handler(handler, transactional=transactional)
        self._queue = queue
        self.mapping = queue.mapping
        self.status_key = queue.mapping.attributes["status"]
        self.handler = handler
        self.transactional = transactional
        self.timeout = timeout
        self._has_warned = False

    @property
    def queue(self) -> JobQueue[T]:
        """The queue that jobs are claimed from."""
        return self._queue

    @property
    def is_async(self) -> bool:
        """Whether the handler has to be awaited."""
        return is_awaited(self.handler)

    def outcome_of(self, returned: Any) -> Finished | NotDone:
        """Return the outcome of a job whose handler has returned something.

        A value that a worker does not understand is ignored, with one warning for each lane.

        Raises:
            ArgumentError: the handler's work has never run, or its outcome cannot be written.
        """
        if returned is None:
            return None
        refuse_unrun(returned)
        if isinstance(returned, Done | NotDone):
            check_outcome(returned, self.mapping)
            if not isinstance(returned, Done):
                return returned
            self.check_branch(returned.then)
            return returned if returned.values else returned.then
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s returned %.200r, which a worker does not understand. Its job is done: return "
                "None, Done(..), Retry(..), Release(..) or Cancel(..)",
                function_name(self.handler),
                returned,
            )
        return None

    def check_branch(self, then: str | None) -> None:
        """Refuse a status that no job of the lane goes to.

        Raises:
            ArgumentError: only steps of a workflow have branches.
        """
        if then is not None:
            raise ArgumentError(
                f"Done(then={then!r}) names a branch, and only a step of a workflow has one: its "
                "queue says what a done job becomes"
            )

    def finish(self, session: Session, handled: Sequence[Any], *, delete: bool | None) -> list[Any]:
        """Write the outcomes of jobs; return those whose claim was lost.

        Raises:
            RuntimeError: a handler has not returned.
        """
        lost: list[Any] = []
        by_branch: dict[str | None, list[Any]] = {}
        for in_hand in handled:
            outcome = in_hand.outcome
            if outcome is None or isinstance(outcome, Done | str):
                by_branch.setdefault(branch_of(outcome), []).append(in_hand)
            elif outcome is NOT_YET:
                name = function_name(self.handler)
                raise RuntimeError(f"{name} has not returned: its job has no outcome yet")
            else:
                text = outcome.error if isinstance(outcome, Failed) else outcome.reason
                lost += self.finish_otherwise(session, in_hand.job, outcome, text)
        for then, done in by_branch.items():
            jobs, values = jobs_of(done), _values_of(done)
            lost += claims_lost_by(
                partial(self.complete, session, jobs, then, delete=delete, values=values)
            )
        return lost

    def complete(
        self,
        session: Session,
        jobs: Sequence[T],
        then: str | None,
        *,
        delete: bool | None,
        values: OwnValues | None,
    ) -> None:
        """Finish jobs whose handlers returned None or Done; `then` is a branch of a step."""
        self.queue.complete(session, jobs, delete=delete, values=values)

    def finish_otherwise(
        self,
        session: Session,
        job: T,
        outcome: NotDone | Failed,
        text: str | BaseException | None,
    ) -> list[Any]:
        """Write the outcome of a job that is not done; return the job if its claim was lost.

        Args:
            text: goes to ``last_error``.
        """
        queue: Any = self.queue
        match outcome:
            case Cancel():
                write = partial(queue.cancel_claimed, reason=text)
            case Release(until=None):
                write = partial(queue.release)
            case Release(until=until):
                write = partial(queue.release, values={self.mapping.attribute("run_at"): until})
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
            due = mapping.attribute("run_at") <= utc_now()
            tried = mapping.attribute("attempts") > 0 if mapping.has("attempts") else None
            left = left.where(due if tried is None else or_(due, tried))
        with writing(session, mapping, reads=True) as writer:
            return writer.rows(left.limit(1)).first() is not None


def jobs_of(done: Sequence[Any]) -> Any:
    """Return the jobs, or their claim if they are all its jobs: it costs less to finish."""
    claim, *others = {in_hand.claim for in_hand in done}
    if claim is not None and not others and len(claim) == len(done):
        return claim
    return [in_hand.job for in_hand in done]


def _values_of(done: Sequence[Any]) -> OwnValues | None:
    """Return the own columns that handlers returned for their jobs; None: none did."""
    values = {
        id(in_hand.job): in_hand.outcome.values
        for in_hand in done
        if isinstance(in_hand.outcome, Done)
    }
    return (lambda job: values.get(id(job), {})) if values else None


class LaneOrder(Generic[T]):
    """The order in which a worker claims from its lanes; each iteration is one turn.

    Attributes:
        usual: the lanes as most turns ask them.
    """

    def __init__(self, lanes: Sequence[Lane[T]]) -> None:
        steps = [lane for lane in lanes if lane.last_first]
        self.usual = [lane for lane in lanes if not lane.last_first] + steps[::-1]
        self._asked = dict.fromkeys(self.usual, 0)
        self._turn = 0

    def __iter__(self) -> Iterator[Lane[T]]:
        self._turn += 1
        for lane in self._order():
            self._asked[lane] = self._turn
            yield lane

    def _order(self) -> list[Lane[T]]:
        if self._turn % FAIR_EVERY:
            return self.usual
        return sorted(self.usual, key=self._asked.__getitem__)


def lanes_of(
    queue: JobQueue[T] | Lane[T] | Iterable[JobQueue[Any] | Lane[Any]],
    handler: Callable[[T], Any] | None,
) -> tuple[Lane[T], ...]:
    """Return the lanes of a worker.

    Raises:
        ArgumentError: no queue, a queue without a handler, a handler beside those of lanes,
            two queues with the same jobs, or a strategy whose claims write nothing.
    """
    lanes = _lanes_of(queue, handler)
    for lane in lanes:
        _check_marks(lane.queue.plan.strategy)
    for queue, other in combinations([lane.queue for lane in lanes], 2):
        if _have_the_same_jobs(queue, other):
            raise ArgumentError(
                f"{queue!r} and {other!r} claim the same jobs, and either handler would get any of "
                "them: give each JobQueue criteria of its own"
            )
    return lanes


def _have_the_same_jobs(queue: JobQueue[Any], other: JobQueue[Any]) -> bool:
    """Tell whether two queues have the same class, status and criteria."""
    here, there = queue.plan.spec, other.plan.spec
    return (
        queue.mapping.mapper is other.mapping.mapper
        and queue.ready == other.ready
        and len(here.where) == len(there.where)
        and all(own.compare(its) for own, its in zip(here.where, there.where, strict=True))
    )


def _lanes_of(queue: Any, handler: Callable[[T], Any] | None) -> tuple[Lane[T], ...]:
    if isinstance(queue, JobQueue) and handler is not None:
        return (_lane_with(queue, handler),)
    if not isinstance(queue, Iterable) or isinstance(queue, type):
        queue = (queue,)
    queues = tuple(queue)
    if not queues or not all(isinstance(each, JobQueue | Lane) for each in queues):
        raise ArgumentError(
            f"a worker needs JobQueues, or steps of a workflow, not {queue!r}: for a class, write "
            "JobQueue(Class)"
        )
    if handler is not None:
        raise ArgumentError(
            "give a handler only with one queue that has none: steps have their own, and several "
            "queues declare theirs by @queue.handler"
        )
    return tuple(each if isinstance(each, Lane) else lane_of(each) for each in queues)


def _lane_with(queue: JobQueue[T], handler: Callable[[T], Any]) -> Lane[T]:
    if queue.handled_by is not None:
        there = function_name(queue.handled_by.function)
        raise ArgumentError(
            f"{queue!r} has a handler already: {there}. Give the worker no handler, or "
            "another JobQueue"
        )
    return Lane(queue, handler)


def lane_of(queue: JobQueue[T]) -> Lane[T]:
    """Return the lane of a queue that has a handler.

    Raises:
        ArgumentError: it has none.
    """
    found = queue.handled_by
    if found is None:
        raise ArgumentError(f"{queue!r} has no handler: declare one with @queue.handler")
    return Lane(queue, found.function, transactional=found.transactional, timeout=found.timeout)


def _check_marks(strategy: str) -> None:
    if strategy != AUTO and not STRATEGIES[strategy].marks:
        raise ArgumentError(
            f"a worker commits between claim and finish, and a claim by {strategy!r} ends with the "
            "commit: use another strategy"
        )


def claims_lost_by(finish: Callable[[], None]) -> list[Any]:
    """Call `finish`; return the jobs whose claim was lost: their new owners finish them."""
    try:
        finish()
    except ClaimLost as lost:
        return list(lost.lost)
    return []
