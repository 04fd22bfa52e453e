"""Handlers: call the handler of a job, and note the outcome of the attempt.

A handler may ask about its attempt::

    def export(report: Report) -> Release | None:
        for part in parts(report):
            if job_context().asked_to_stop:
                return Release(reason="the worker stops")

A Worker calls handlers in the thread of their slot; an AsyncWorker has its own way.

The effects of a transactional handler and the finish of its job are one commit::

    @invoices.handler(transactional=True)
    def book(session: Session, invoice: Invoice) -> None:
        session.add(LedgerEntry(invoice=invoice))

The claim is committed before the handler runs. The handler's transaction begins with a locking read
behind the job's fence: a job whose claim was lost is not handled. From then on, the lock replaces
the lease. The heartbeat therefore stops renewing the job first: a renewal would wait for the lock,
and hold up all other renewals.

A savepoint follows the locking read, and is released before the finish. It ends with its
transaction. So its release fails if the handler or the server has ended that transaction without
SQLAlchemy's knowledge: by SQL text, by the driver's own commit(), by a deadlock or by the implicit
commit of a CREATE TABLE on InnoDB. The job is not finished then.

If the handler fails, or returns a Retry, a Release or a Cancel, its effects are rolled back, and
the next turn writes the outcome of the job. In a batch, the others are then handled again. If the
answer to a COMMIT is lost, the transaction is run again, and the locking read, or what it misses,
tells whether the COMMIT has succeeded.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import repeat
from math import inf
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from sqlalchemy import Engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..databases import is_failed_transaction
from ..errors import ArgumentError
from ..events.event import Event, EventJob, called_on
from ..events.notes import tell
from ..fence.claim import jobs_by_token, with_fence
from ..fence.statements import KEYS, is_as_finished, lock_ours
from ..fence.token import Identity
from ..model.columns import first_line
from ..model.keys import key_batches, key_is_in, key_values
from ..model.mapping import word_of
from ..process import Flag, function_name
from ..sessions.writer import Writer, writing
from .deadlines import lift_deadline
from .in_hand import Call, Ended, InHand, job_fields, job_name, log_end, log_lost
from .lanes import (
    NOT_YET,
    Done,
    Failed,
    Finished,
    Lane,
    NotDone,
    Release,
    Retry,
    claims_lost_by,
)
from .named import name_records
from .transactions import Stopped, Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")


class JobContext:
    """An attempt at a job, or at a batch; :func:`job_context` returns it while its handler runs."""

    #: The name of the job's database, or None if the worker has only one, without a name.
    database: str | None
    _jobs: Sequence[InHand]
    _stopping: Flag

    @property
    def attempt(self) -> int | None:
        """The number of this attempt, from 1; None without RetryMixin.

        In a batch, that of the job that was tried most often.
        """
        return max(self._jobs, key=lambda job: job.attempts or 0).attempts

    @property
    def owner(self) -> str:
        """Who has claimed the job."""
        return str(self._jobs[0].fence.owner)

    @property
    def asked_to_stop(self) -> bool:
        """Whether the handler should end early.

        It is True when the worker is to stop, when the worker has given this job up, or when
        somebody has called :func:`sa_jobqueue.control.request_stop`, in a batch for any of its
        jobs. The handler may then return a :class:`~sa_jobqueue.worker.Release`.
        """
        asked = (job.asked_to_stop or job.given_up is not None for job in self._jobs)
        return self._stopping.is_set() or any(asked)

    @property
    def time_left(self) -> timedelta | None:
        """The time until the handler's timeout; zero when it is over, None without a timeout."""
        left = self._jobs[0].deadline - time.monotonic()
        return None if left == inf else timedelta(seconds=max(left, 0))


_current: ContextVar[JobContext] = ContextVar("sa_jobqueue_job_context")


def job_context() -> JobContext:
    """Return the attempt whose handler runs here, in this thread or task.

    Raises:
        ArgumentError: the call is not made in a handler.
    """
    try:
        return _current.get()
    except LookupError:
        raise ArgumentError("no worker runs this code: call job_context() in a handler") from None


ENDED = (
    "the transaction that a transactional handler shares with the finish of its job has ended in "
    "the handler: commit and roll back only within session.begin_nested(), do not catch the error "
    "of a deadlock, and on MySQL and MariaDB run no statement that commits by itself, such as "
    "CREATE TABLE or TRUNCATE"
)

#: The key in session.info of what a handler is given in place of the session: its AsyncSession.
GIVEN = "sa_jobqueue.given"

#: The savepoint that shows that the handler's transaction goes on.
_SAVEPOINT = "sa_jobqueue_handler"

CHANGED = (
    "a transactional handler has deleted its job, or changed its key, status, owner or owner_date: "
    "leave these to the worker, and return Cancel(..) or Retry(..) instead"
)

FAILED = (
    "a statement of a transactional handler has failed, and the server refuses all further "
    "statements of its transaction: run a statement that may fail within session.begin_nested(), "
    "and catch its error outside of that block"
)


class _Over(Exception):
    """The transaction is rolled back, and not run again as it was.

    Its argument is the error of the handler, or the outcome of each job that is not done. Raise it
    `from None`: a deadlock that it came from would be run again.
    """


#: A job that is not done, also by an exception: the writes of its handler are rolled back.
Undone: TypeAlias = NotDone | Exception


class Attempt(JobContext):
    """An attempt at the jobs of a call; its end notes the outcomes set in it, or the error.

    Attributes:
        context: for the handler: a copy of ours, so the next handler does not see what this one
            changes in it.
        outcomes: those of the jobs, in their order; None: all are done.
    """

    outcomes: Sequence[Finished | Undone] | None = None
    _begun = False
    _may_be_finished = False
    _finished: Mapping[InHand, Finished | Undone] = MappingProxyType({})

    def __init__(self, calls: Calls, call: Call) -> None:
        loop = call[0].loop
        self.database = None if loop is None else loop.name
        if self.database is not None:
            name_records(self.database)
        given: Any = calls.transactions if loop is None else loop.turns.transactions
        self._transactions: Transactions = given
        self._jobs, self._calls, self._stopping = call, calls, given.stopping
        self._lane = lane = call[0].lane
        self.context = context = copy_context()
        context.run(self._enter)
        if lane.mapping.listeners and not lane.transactional:
            context.run(tell_start, call)
        self._process = os.getpid()
        self._statuses = [vars(each.job).get(lane.status_key) for each in call]

    def _enter(self) -> None:
        _current.set(self)
        lift_deadline()

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> bool:
        calls = self._calls
        del self.context  # which has us
        if self._process != os.getpid():
            _end_child(raised)
        for in_hand, status in zip(self._jobs, self._statuses, strict=True):
            if vars(in_hand.job).get(in_hand.lane.status_key) != status:
                in_hand.moved = True
            if instance_state(in_hand.job).modified:
                _log_changes(in_hand)
        if raised is not None:
            # A handler that was given up failed at that moment, whatever it raises afterwards.
            error = self._jobs[0].given_up or raised
            if error is not raised:
                error.__context__ = raised  # the log shows both
            if not calls.was_interrupted(error):
                calls.fail(self._left, error)
            if not isinstance(error, Exception):
                raise error
            return True  # the only catch-all: a handler fails no job but its own
        if not self._lane.transactional:
            self._note(zip(self._jobs, self.outcomes or repeat(None), strict=False))
        return False

    @property
    def _left(self) -> list[InHand]:
        """The jobs whose outcome was not noted yet."""
        return [each for each in self._jobs if each.outcome is NOT_YET]

    def _note(self, outcomes: Iterable[tuple[InHand, Finished | Undone]]) -> None:
        """Note the outcomes of jobs."""
        for in_hand, outcome in outcomes:
            if isinstance(outcome, Exception):
                self._calls.fail([in_hand], outcome)
                continue
            in_hand.duration = time.monotonic() - in_hand.began
            if outcome is not None and isinstance(outcome, Retry) and outcome.in_ is None:
                outcome = replace(outcome, in_=self._calls.delay(in_hand))
            in_hand.outcome = outcome

    def in_transaction(self) -> None:
        """Call a transactional handler and finish its jobs, all of them or none.

        Their rows are locked, so their claims are not renewed. If some are not done, the effects
        of all are rolled back, and the handler is called again with the others.

        Raises:
            Exception: the error of the handler or of the database, after the effects were
                rolled back.
        """
        transactions, mapper = self._transactions, self._lane.mapping.mapper
        for in_hand in self._jobs:
            in_hand.locked = True
        transactions.wait_for_renewal()
        try:
            while left := self._left:
                try:
                    transactions.run_for_handler(self._work, mapper=mapper)
                except _Over as over:
                    undone: Mapping[InHand, Undone] | Exception = over.args[0]
                    if isinstance(undone, Exception):
                        raise undone from undone.__cause__
                    self._note(undone.items())
                    for in_hand in undone:
                        in_hand.locked = False
                except Exception as error:
                    if not (transactions.patience.is_endless and transactions.is_missing(error)):
                        raise
                    away = Release(reason=f"database away: {cause_of(error)}")
                    self._note((in_hand, away) for in_hand in left)
                else:
                    for in_hand in left:
                        in_hand.ended = in_hand.ended or Ended.FINISHED
                    self._note((in_hand, self._finished.get(in_hand)) for in_hand in left)
        finally:
            for in_hand in self._jobs:
                in_hand.locked = False
        log_lost(in_hand for in_hand in self._jobs if in_hand.ended is Ended.LOST)

    def _work(self, session: Session) -> None:
        lane, left = self._lane, [each for each in self._left if each.ended is None]
        with writing(session, lane.mapping) as writer:
            ours = _still_ours(writer, left)
            for in_hand in left:
                if in_hand not in ours:
                    in_hand.ended = Ended.LOST if ours else self._ended(writer, in_hand)
                    if in_hand.ended is Ended.LOST:
                        in_hand.outcome = None
            if not ours:
                return
            self._may_be_finished = False
            jobs = self._attached(session, writer, ours)
            connection = writer.connection
            connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        statuses = [vars(job).get(lane.status_key) for job in jobs]
        event.listen(session, "before_commit", _refuse_commit)
        try:
            outcomes = self._call(session, ours, jobs)
        except Exception as error:
            raise _Over(_explained(error)) from None
        event.remove(session, "before_commit", _refuse_commit)
        undone = {job: end for job, end in outcomes.items() if isinstance(end, Undone)}
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except DBAPIError as error:
            if self._transactions.is_away(error):
                raise
            if not (undone and is_failed_transaction(error)):
                raise _Over(_explained(error, ENDED)) from None
        if undone:
            raise _Over(undone)
        fences = [in_hand.fence for in_hand in ours]
        own = {job.fence: end.values for job, end in outcomes.items() if isinstance(end, Done)}
        values = (lambda fence: own.get(fence, {})) if own else None
        delete = self._calls.delete
        finish = partial(lane.complete, session, fences, None, delete=delete, values=values)
        is_lost = any(
            instance_state(job).deleted or vars(job).get(lane.status_key, status) != status
            for job, status in zip(jobs, statuses, strict=True)
        )
        if is_lost:  # perhaps it has only moved on; a finish would tell of a lost claim
            with writing(session, lane.mapping) as writer:
                is_lost = len(_still_ours(writer, ours)) < len(ours)
        # We hold their locks: nobody else has changed them.
        if is_lost or claims_lost_by(finish):
            raise _Over(ArgumentError(CHANGED))
        self._finished = outcomes
        self._may_be_finished = True  # the COMMIT follows, whose answer may be lost

    def _attached(self, session: Session, writer: Writer, ours: Sequence[InHand]) -> list[Any]:
        """Return the jobs in the session of their handler; several are loaded together."""
        mapping, options = self._lane.mapping, self._calls.options
        fences, jobs = [each.fence for each in ours], []
        loaded: list[Any] = []  # the session keeps only what somebody refers to
        if len(fences) > 1:
            named = key_is_in(mapping, KEYS, writer.database)
            read = select(mapping.entity).where(named).options(*options)
            for keys in key_batches([fence.identity for fence in fences]):
                loaded += session.scalars(read, {KEYS: key_values(keys)}).unique()
        for fence in fences:
            job = session.get(fence.entity, fence.identity, options=options)
            if job is None:
                text = f"a criterion of the session hides {fence!r} from its handler: have the "
                raise _Over(ArgumentError(f"{text}criterion show all jobs that the queue claims"))
            jobs.append(with_fence(job, fence))
        return jobs

    def _call(
        self, session: Session, ours: Sequence[InHand], jobs: Sequence[Any]
    ) -> dict[InHand, Finished | Undone]:
        """Call the handler, and flush what it has done; return what became of each job."""
        calls, first = self._calls, ours[0]
        transaction = session.get_transaction()
        if first.given_up is not None:  # the wait for the lock may have outlasted the grace
            raise first.given_up
        if self._lane.mapping.listeners and not self._begun:  # the claims are not lost
            self.context.run(tell_start, ours)
        self._begun = True
        try:
            given = session.info.get(GIVEN, session)
            outcomes = calls.call(self._lane, self.context, jobs, given)
        finally:
            if self._process != os.getpid():
                _end_child(sys.exc_info()[1])
        if first.given_up is not None:
            raise first.given_up
        if not any(isinstance(end, Undone) for end in outcomes or ()):
            session.flush()
        while (nested := session.get_nested_transaction()) is not None:
            nested.commit()  # which the handler has left open: ours would take it along
        if session.get_transaction() is not transaction:
            raise ArgumentError(ENDED)
        return dict(zip(ours, outcomes or [None] * len(ours), strict=True))

    def _ended(self, writer: Writer, in_hand: InHand) -> Ended:
        """Tell how a job has ended whose claim is gone, with all others of its batch.

        A COMMIT that was not answered may have failed, and then somebody else may have taken the
        job: only its row tells.
        """
        queue, fence = in_hand.lane.queue, in_hand.fence
        then = word_of(queue.mapping, queue.then)
        ours = self._may_be_finished and is_as_finished(writer, queue.mapping, fence, then)
        return Ended.FINISHED if ours else Ended.LOST


def _still_ours(writer: Writer, jobs: Sequence[InHand]) -> list[InHand]:
    """Lock the rows of jobs of one class; return the jobs whose claims are not lost.

    The locks replace the leases until the transaction ends.
    """
    found = set[Identity]()
    for part in jobs_by_token([in_hand.fence for in_hand in jobs]):
        for keys in key_batches(part.identities):
            found |= lock_ours(writer, part.mapping, part.token, keys)
    return [in_hand for in_hand in jobs if in_hand.fence.identity in found]


def _explained(error: Exception, text: str | None = None) -> Exception:
    """Return an error with the way out: `text`, or our own if the error's has none."""
    if is_failed_transaction(error):
        text = FAILED
    if text is None:
        return error
    explained = ArgumentError(text)
    explained.__cause__ = error
    return explained


def _refuse_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        raise ArgumentError(ENDED)


def _log_changes(in_hand: InHand) -> None:
    """Log which attributes of its detached job a handler has set."""
    state, fields = instance_state(in_hand.job), job_fields(in_hand)
    if state.committed_state and state.session is None:
        log.error(
            "a handler has set %s of %s. The job is detached, and this change is not saved: "
            "declare the handler with transactional=True, or write in a session of your own",
            ", ".join(sorted(state.committed_state)),
            job_name(fields),
            extra=fields,
        )


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that a handler has forked, as Python ends one that ends by this exception.

    It must not go on with the worker's code, which uses the connections of its parent.
    """
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell_start(jobs: Sequence[InHand]) -> None:
    """Tell of each job that its handler is about to be called."""
    for in_hand in jobs:
        queue, fence = in_hand.lane.queue, in_hand.fence
        status, dates = fence.token.status, tuple(fence.token.dates)
        job = EventJob(
            fence.identity, status, status, fence.owner, dates, in_hand.attempts, entity=in_hand.job
        )
        with called_on(queue):
            tell(queue.mapping, Event("after_start", "start", queue.entity, (job,), 1))


@dataclass
class Calls:
    """Call handlers.

    Attributes:
        transactions: of jobs that no loop has claimed.
        delete: whether done jobs are deleted; None: as the model says.
        options: loader options for the jobs of transactional handlers.
        delay: returns how long a failed job waits.
    """

    transactions: Transactions | None
    delay: Callable[[InHand], timedelta | None]
    delete: bool | None = None
    options: Sequence[Any] = ()

    #: Whether a handler is ended at its timeout. Otherwise the worker stops waiting for it.
    keeps_timeouts = False

    @staticmethod
    def plain_sessions(engine: Engine) -> Callable[[], Session]:
        """Return what opens sessions of transactional handlers, if the application opens none."""
        return partial(Session, engine)

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse handlers that cannot be called here.

        Raises:
            ArgumentError: it names the handler.
        """
        for part in (part for lane in lanes for part in lane.parts):
            if part.is_async:
                raise ArgumentError(
                    f"{function_name(part.handler)} has to be awaited: use an AsyncWorker, or "
                    "sa_jobqueue.testing.asyncio.run_all() in a test"
                )

    def handle(self, call: Call) -> None:
        """Call the handler of jobs, and note their outcomes.

        Raises:
            BaseException: what the handler raised that is no Exception; the attempt has failed.
                If the worker has interrupted the handler, there was no attempt.
        """
        lane = call[0].lane
        with Attempt(self, call) as attempt:
            if lane.transactional:
                attempt.in_transaction()
            else:
                attempt.outcomes = self.call(lane, attempt.context, [job.job for job in call])

    def fail(self, jobs: Sequence[InHand], error: BaseException) -> None:
        """Note that an attempt at jobs has failed, and log it; one record has the traceback."""
        for in_hand in jobs:
            in_hand.duration = time.monotonic() - in_hand.began
            in_hand.outcome = Failed(error, self.delay(in_hand))
            traceback = error if in_hand is jobs[0] else None
            log_end(None, in_hand, "failed", first_line(error), exc_info=traceback)

    def call(
        self, lane: Lane[Any], context: Context, jobs: Sequence[Any], *session: Any
    ) -> Sequence[Finished | Undone] | None:
        """Call a handler, and return the outcomes of its jobs; None: all are done."""
        given = jobs[0] if lane.batch is None else [*jobs]
        returned = context.run(lane.handler, *session, given)
        return None if returned is None else lane.outcomes_of(returned, jobs)

    def interrupt(self) -> bool:
        """Interrupt all running handlers; return False if that is not possible."""
        return False

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether the worker ended the attempt, not the handler: it does not count then."""
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether an error in the supervisor ends the run without any wait."""
        return False
