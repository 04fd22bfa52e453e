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
the next turn writes the outcome of the job. If the answer to a COMMIT is lost, the transaction is
run again, and the locking read, or what it misses, tells whether the COMMIT has succeeded.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..dialects import is_failed_transaction
from ..errors import ArgumentError, ClaimLost
from ..events.event import Event, EventJob, called_on
from ..events.notes import tell
from ..fence.claim import fence_of, with_fence
from ..fence.statements import is_as_finished, lock_claim
from ..fence.token import Fence
from ..model.mapping import word_of
from ..process import Flag, function_name
from ..queue import JobQueue
from ..sessions.deadlines import lift_deadline
from ..sessions.writer import Writer, writing
from .in_hand import Ended, InHand, job_fields, log_failure, log_lost
from .lanes import Done, Failed, Finished, Lane, NotDone, Retry, branch_of
from .transactions import Stopped, Transactions

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")


class JobContext:
    """An attempt at a job; :func:`job_context` returns it while its handler runs."""

    def __init__(self, in_hand: InHand[Any], stopping: Flag) -> None:
        self._in_hand = in_hand
        self._stopping = stopping

    @property
    def attempt(self) -> int | None:
        """The number of this attempt, from 1; None without RetryMixin."""
        return self._in_hand.attempts

    @property
    def owner(self) -> str:
        """Who has claimed the job."""
        return str(self._in_hand.fence.owner)

    @property
    def asked_to_stop(self) -> bool:
        """Whether the handler should end early.

        It is True when the worker is to stop, when the worker has given this job up, or when
        somebody has called :func:`sa_jobqueue.control.request_stop`. The handler may then return
        a :class:`~sa_jobqueue.worker.Release`.
        """
        in_hand = self._in_hand
        return self._stopping.is_set() or in_hand.asked_to_stop or in_hand.given_up is not None

    @property
    def time_left(self) -> timedelta | None:
        """The time until the handler's timeout; zero when it is over, None without a timeout."""
        deadline = self._in_hand.deadline
        return None if deadline is None else timedelta(seconds=max(deadline - time.monotonic(), 0))


_current: ContextVar[tuple[InHand[Any], Flag]] = ContextVar("sa_jobqueue_job_context")

#: Sets the attempt that job_context() returns in the current context.
set_job_context = _current.set


def job_context() -> JobContext:
    """Return the attempt whose handler runs here, in this thread or task.

    Raises:
        ArgumentError: the call is not made in a handler.
    """
    try:
        return JobContext(*_current.get())
    except LookupError:
        raise ArgumentError("no worker runs this code: call job_context() in a handler") from None


@dataclass
class Attempts(Generic[T]):
    """The attempts of a worker.

    Attributes:
        wait_for_renewal: waits until no renewal of claims is under way.
        stopping: set when the worker is to stop.
        delete: whether done jobs are deleted; None: as the model says.
        options: loader options for the jobs of transactional handlers.
        delay: returns how long a failed job waits.
    """

    calls: Calls
    transactions: Transactions
    wait_for_renewal: Callable[[], None]
    stopping: Flag
    delete: bool | None
    options: Sequence[Any]
    delay: Callable[[InHand[T]], timedelta | None]

    def make(self, in_hand: InHand[T]) -> None:
        """Call the handler of a job, and note the outcome.

        Raises:
            BaseException: what the handler raised that is no Exception; the attempt has failed.
                If the worker has interrupted the handler, there was no attempt.
        """
        try:
            context = self.begin(in_hand)
            if in_hand.lane.transactional:
                outcome = self._outcome_in_transaction(in_hand, context)
            else:
                before = self.before_handler(in_hand)
                try:
                    returned = self.calls.call(in_hand, context)
                finally:
                    leave_handler(in_hand, before)
                outcome = None if returned is None else in_hand.lane.outcome_of(returned)
        except BaseException as raised:  # the only catch-all: a handler fails no job but its own
            self.note_error(in_hand, raised)
        else:
            self.note_outcome(in_hand, outcome)

    def note_outcome(self, in_hand: InHand[T], outcome: Finished | NotDone) -> None:
        """Note the outcome of an attempt whose handler has returned."""
        in_hand.duration = time.monotonic() - in_hand.began
        if outcome is not None and isinstance(outcome, Retry) and outcome.in_ is None:
            outcome = replace(outcome, in_=self.delay(in_hand))
        in_hand.outcome = outcome

    def note_error(self, in_hand: InHand[T], raised: BaseException) -> None:
        """Note the failure of an attempt whose handler has raised an exception.

        Raises:
            BaseException: the exception, if it is no Exception.
        """
        # A handler that was given up failed at that moment, whatever it raises afterwards.
        error = in_hand.given_up or raised
        if error is not raised:
            error.__context__ = raised  # the log shows both
        if not self.calls.was_interrupted(error):
            self.fail(in_hand, error)
        if not isinstance(error, Exception):
            raise error

    def fail(self, in_hand: InHand[T], error: BaseException) -> None:
        """Note that an attempt has failed, and log it."""
        in_hand.duration = time.monotonic() - in_hand.began
        in_hand.outcome = Failed(error, self.delay(in_hand))
        log_failure(in_hand, error)

    def begin(self, in_hand: InHand[T]) -> Context:
        """Begin an attempt; return the context for its handler.

        It is a copy of ours: the next handler does not see what this one changes in it.
        """
        context = copy_context()
        context.run(set_job_context, (in_hand, self.stopping))
        context.run(lift_deadline)
        if in_hand.lane.mapping.listeners and not in_hand.lane.transactional:
            context.run(tell_start, in_hand)
        return context

    def before_handler(self, in_hand: InHand[T]) -> tuple[int, Any]:
        """Return what :func:`leave_handler` compares with."""
        return _forks, vars(in_hand.job).get(in_hand.lane.status_key)

    def _outcome_in_transaction(self, in_hand: InHand[T], context: Context) -> Finished | NotDone:
        """Call a transactional handler: its row is locked, so its claim is not renewed."""
        in_hand.locked = True
        self.wait_for_renewal()
        begun = False

        def call(session: Session, job: Any) -> Any:
            nonlocal begun
            if in_hand.lane.mapping.listeners and not begun:  # the claim is not lost
                context.run(tell_start, in_hand)
            begun = True
            forks = _forks
            try:
                return self.calls.call_in(session, in_hand, context, job)
            finally:
                if forks != _forks:
                    _end_child(sys.exc_info()[1])

        try:
            return HandlersTransaction(self, in_hand, call).run()
        finally:
            in_hand.locked = in_hand.ended is not None  # else its outcome is still to be written


def leave_handler(in_hand: InHand[Any], before: tuple[int, Any]) -> None:
    """Note what a handler has done to its process, and to its detached job.

    A child that the handler has forked ends here: it must not go on with the worker's code, which
    uses the connections of its parent.

    Args:
        before: the number of forks, and the status of the job.
    """
    forks, status = before
    if forks != _forks:
        _end_child(sys.exc_info()[1])
    job: Any = in_hand.job
    if job.__dict__.get(in_hand.lane.status_key) != status:
        in_hand.moved_itself = True
    if instance_state(job).modified:
        _log_changes(in_hand)


#: How often this process was forked: os.getpid() is a system call, which some sandboxes make slow.
_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _status_of(in_hand: InHand[Any], job: Any) -> Any:
    """Return the status of a job's entity, without a read; None: it is expired, or deleted."""
    return None if instance_state(job).deleted else vars(job).get(in_hand.lane.status_key)


def _end_child(error: BaseException | None) -> NoReturn:
    """End a forked process as Python ends a process that ends by this exception."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Calls:
    """Call handlers.

    Args:
        engine: where sessions are opened.
        open_session: opens sessions of the application's kind; None: plain ones on `engine`.
    """

    #: Whether a handler is ended at its timeout. Otherwise the worker stops waiting for it.
    keeps_timeouts = False

    def __init__(self, engine: Engine, open_session: Callable[[], Session] | None) -> None:
        self._engine = engine
        self._open_session = open_session

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse handlers that cannot be called here.

        Raises:
            ArgumentError: it names the handler.
        """
        for lane in lanes:
            if lane.is_async:
                raise ArgumentError(
                    f"{function_name(lane.handler)} has to be awaited: use an AsyncWorker, or "
                    "sa_jobqueue.testing.asyncio.run_all() in a test"
                )

    def call(self, in_hand: InHand[Any], context: Context) -> Any:
        """Call the handler with the job, and return what it returns."""
        return context.run(in_hand.lane.handler, in_hand.job)

    def call_in(self, session: Session, in_hand: InHand[Any], context: Context, job: Any) -> Any:
        """Call a transactional handler with the job in that session."""
        return context.run(in_hand.lane.handler, session, job)

    def open_session(self) -> Session:
        """Open the session of a transactional handler."""
        return Session(self._engine) if self._open_session is None else self._open_session()

    def interrupt(self) -> bool:
        """Interrupt all running handlers; return False if that is not possible."""
        return False

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether the worker ended the attempt, not the handler: it does not count then."""
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether an error in the supervisor ends the run without any wait."""
        return False


ENDED = (
    "the transaction that a transactional handler shares with the finish of its job has ended in "
    "the handler: commit and roll back only within session.begin_nested(), do not catch the error "
    "of a deadlock, and on MySQL and MariaDB run no statement that commits by itself, such as "
    "CREATE TABLE or TRUNCATE"
)

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

BEGUN = (
    "the transaction of a transactional handler is begun already, and commits with the finish of "
    "its job: use session.begin_nested(), or do not begin"
)


class _Over(Exception):
    """The transaction is rolled back, and not run again.

    Raise it `from None`: a deadlock that it came from would be run again.

    Attributes:
        end: what the job's outcome is; the error of its handler; or how the job has ended without
            this handler, since its claim is not ours any more.
    """

    def __init__(self, end: NotDone | Exception | Ended) -> None:
        super().__init__(end)
        self.end = end


@dataclass
class HandlersTransaction(Generic[T]):
    """The transaction of a handler; `call` calls the handler with a session and the job."""

    attempts: Attempts[T]
    in_hand: InHand[T]
    call: Callable[..., Any]
    _outcome: Finished = None
    _connection: Any = None

    def run(self) -> Finished | NotDone:
        """Handle the job and finish it; return the outcome.

        Unless the outcome is one of NotDone, the job has ended.

        Raises:
            Exception: the error of the handler or of the database, after the effects were
                rolled back.
        """
        in_hand, attempts = self.in_hand, self.attempts
        mapper = in_hand.lane.queue.mapping.mapper
        try:
            outcome = attempts.transactions.run_in(
                attempts.calls.open_session, self._work, mapper=mapper
            )
        except _Over as over:
            if isinstance(over.end, Exception):
                raise over.end from over.end.__cause__
            if isinstance(over.end, NotDone):
                return over.end
            in_hand.ended = over.end
            if over.end is Ended.LOST:
                log_lost([in_hand])
            return self._outcome
        in_hand.ended = Ended.FINISHED
        return outcome

    def _work(self, session: Session) -> Finished:
        job = self._locked(session)
        try:
            with _kept_open(session, self._connection):
                self._check_given_up()  # the wait for the lock may have outlasted the grace
                status = _status_of(self.in_hand, job)
                returned = self.call(session, job=job)
                self._check_given_up()
                outcome = self.in_hand.lane.outcome_of(returned)
                if not isinstance(outcome, NotDone):
                    session.flush()
            while (nested := session.get_nested_transaction()) is not None:
                nested.commit()  # which the handler has left open: ours would take it along
        except Exception as error:
            raise _Over(_explained(error)) from None
        self._release_savepoint(outcome)
        if isinstance(outcome, NotDone):
            raise _Over(outcome)
        self._finish(session, outcome, moved=_status_of(self.in_hand, job) != status)
        self._outcome = outcome
        self.in_hand.may_be_finished = True  # the COMMIT follows
        return outcome

    def _check_given_up(self) -> None:
        if self.in_hand.given_up is not None:
            raise self.in_hand.given_up

    def _locked(self, session: Session) -> Any:
        """Lock the job's row, and load the job, before it is handled."""
        fence, mapping = fence_of(self.in_hand.job), self.in_hand.lane.queue.mapping
        with writing(session, mapping) as writer:
            self._connection = writer.connection
            if not lock_claim(writer, mapping, fence):
                raise _Over(self._ended(writer, fence))
            self.in_hand.may_be_finished = False
            job = session.get(fence.entity, fence.identity, options=self.attempts.options)
            self._connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        if job is None:
            raise _Over(
                ArgumentError(
                    f"a criterion of the session hides {fence!r} from its handler: have the "
                    "criterion show all jobs that the queue claims"
                )
            )
        return with_fence(job, fence)

    def _release_savepoint(self, outcome: Finished | NotDone) -> None:
        """Release the savepoint that was set before the handler's first statement."""
        try:
            self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except DBAPIError as error:
            if is_failed_transaction(error):
                raise _Over(
                    outcome if isinstance(outcome, NotDone) else _explained(error)
                ) from None
            if self.attempts.transactions.is_away(error):
                raise
            raise _Over(_caused(ArgumentError(ENDED), error)) from None

    def _ended(self, writer: Writer, fence: Fence) -> Ended:
        """Tell how a job has ended whose claim is gone.

        A COMMIT that was not answered may have failed, and then somebody else may have taken the
        job: only its row tells.
        """
        if not self.in_hand.may_be_finished:
            return Ended.LOST
        queue = self.in_hand.lane.queue
        then = word_of(queue.mapping, branch_of(self._outcome) or queue.then)
        ours = is_as_finished(writer, queue.mapping, fence, then)
        return Ended.FINISHED if ours else Ended.LOST

    def _finish(self, session: Session, outcome: Finished, *, moved: bool) -> None:
        fence: Any = fence_of(self.in_hand.job)
        mapping = self.in_hand.lane.mapping
        if moved:  # a finish would tell of a lost claim
            with writing(session, mapping) as writer:
                ours = lock_claim(writer, mapping, fence)
            if not ours:
                raise _Over(ArgumentError(CHANGED))
        values = outcome.values if isinstance(outcome, Done) else None
        delete, then = self.attempts.delete, branch_of(outcome)
        try:
            self.in_hand.lane.complete(session, [fence], then, delete=delete, values=values)
        except ClaimLost:  # we hold its lock: nobody else has changed it
            raise _Over(ArgumentError(CHANGED)) from None
        except DBAPIError as error:
            if is_failed_transaction(error):
                raise _Over(_explained(error)) from None
            raise


def _explained(error: Exception) -> Exception:
    """Return an error with the way out, if SQLAlchemy's or the server's error has none."""
    if is_failed_transaction(error):
        text = FAILED
    elif type(error) is InvalidRequestError and "transaction is already begun" in str(error):
        text = BEGUN
    else:
        return error
    return _caused(ArgumentError(text), error)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@contextmanager
def _kept_open(session: Session, connection: Connection) -> Iterator[None]:
    """Refuse the commit of the outer transaction, and notice its end.

    Raises:
        ArgumentError: the handler has ended it.
    """
    transaction, root = session.get_transaction(), connection.get_transaction()

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise ArgumentError(ENDED)

    event.listen(session, "before_commit", refuse)
    try:
        yield
    finally:
        event.remove(session, "before_commit", refuse)
    if session.get_transaction() is not transaction or connection.get_transaction() is not root:
        raise ArgumentError(ENDED)


def tell_start(in_hand: InHand[Any]) -> None:
    """Tell that the handler of a job is about to be called."""
    queue, fence = in_hand.lane.queue, in_hand.fence
    status, dates = fence.token.status, tuple(fence.token.dates)
    job = EventJob(
        fence.identity, status, status, fence.owner, dates, in_hand.attempts, entity=in_hand.job
    )
    with called_on(queue):
        tell(queue.mapping, Event("after_start", "start", queue.entity, (job,), 1))


def tell_lock_lost(queues: Iterable[JobQueue[Any]]) -> None:
    """Tell that the worker's Owner has lost its lock: others may reap its claims."""
    for queue in queues:
        if queue.mapping.listeners:
            with called_on(queue):
                tell(queue.mapping, Event("after_lock_lost", "check", queue.entity))


def _log_changes(in_hand: InHand[Any]) -> None:
    state = instance_state(in_hand.job)
    if state.session is not None:
        return
    saved = {column.key for column in state.mapper.column_attrs}
    saved |= {each.key for each in state.mapper.relationships if not each.viewonly}
    names = sorted(saved.intersection(state.committed_state))
    if names:
        log.error(
            "a handler has set %s of %s %s. The job is detached, and this change is not saved: "
            "declare the handler with transactional=True, or write in a session of your own",
            ", ".join(names),
            state.class_.__name__,
            ", ".join(map(repr, state.identity or ())),
            extra=job_fields(in_hand),
        )
