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
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ..dialects import is_failed_transaction
from ..errors import ArgumentError
from ..events.event import Event, EventJob, called_on
from ..events.notes import tell
from ..fence.claim import with_fence
from ..fence.statements import is_as_finished, lock_claim
from ..fence.token import Fence
from ..model.mapping import word_of
from ..process import Flag, function_name
from ..queue import JobQueue
from ..sessions.deadlines import lift_deadline
from ..sessions.writer import Writer, writing
from .in_hand import Ended, InHand, job_fields, job_name, log_failure, log_lost
from .lanes import Done, Failed, Finished, Lane, NotDone, Retry, branch_of, claims_lost_by
from .transactions import Stopped, Transactions

log = logging.getLogger("sa_jobqueue.worker")


class JobContext:
    """An attempt at a job; :func:`job_context` returns it while its handler runs."""

    _in_hand: InHand
    _stopping: Flag

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
    """The transaction is rolled back, and not run again.

    Its argument is the outcome of the job, or the error of its handler. Raise it `from None`: a
    deadlock that it came from would be run again.
    """


class Attempt(JobContext):
    """An attempt at a job; its end notes the outcome that is set in it, or the error.

    Attributes:
        context: for the handler: a copy of ours, so the next handler does not see what this one
            changes in it.
    """

    outcome: Finished | NotDone = None
    _begun = False
    _finished: Finished = None
    _may_be_finished = False

    def __init__(self, calls: Calls, in_hand: InHand) -> None:
        lane = in_hand.lane
        self._in_hand, self._calls, self._stopping = in_hand, calls, calls.transactions.stopping
        self.context = context = copy_context()
        context.run(_current.set, self)
        context.run(lift_deadline)
        if lane.mapping.listeners and not lane.transactional:
            context.run(tell_start, in_hand)
        self._process = os.getpid()
        self._status = vars(in_hand.job).get(lane.status_key)

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> bool:
        in_hand, calls, outcome = self._in_hand, self._calls, self.outcome
        del self.context  # which has us
        if self._process != os.getpid():
            _end_child(raised)
        job = in_hand.job
        if vars(job).get(in_hand.lane.status_key) != self._status:
            in_hand.moved = True
        if instance_state(job).modified:
            _log_changes(in_hand)
        if raised is not None:
            # A handler that was given up failed at that moment, whatever it raises afterwards.
            error = in_hand.given_up or raised
            if error is not raised:
                error.__context__ = raised  # the log shows both
            if not calls.was_interrupted(error):
                calls.fail(in_hand, error)
            if not isinstance(error, Exception):
                raise error
            return True  # the only catch-all: a handler fails no job but its own
        in_hand.duration = time.monotonic() - in_hand.began
        if outcome is not None and isinstance(outcome, Retry) and outcome.in_ is None:
            outcome = replace(outcome, in_=calls.delay(in_hand))
        in_hand.outcome = outcome
        return False

    def in_transaction(self) -> Finished | NotDone:
        """Call a transactional handler and finish its job; return the outcome.

        Its row is locked, so its claim is not renewed. Unless the outcome is one of NotDone, the
        job has ended.

        Raises:
            Exception: the error of the handler or of the database, after the effects were
                rolled back.
        """
        in_hand, calls = self._in_hand, self._calls
        in_hand.locked = True
        calls.wait_for_renewal()
        try:
            in_hand.ended = calls.transactions.run_in(
                calls.open_session, self._work, mapper=in_hand.lane.mapping.mapper
            )
        except _Over as over:
            end: NotDone | Exception = over.args[0]
            if isinstance(end, Exception):
                raise end from end.__cause__
            return end
        finally:
            in_hand.locked = False
        if in_hand.ended is Ended.LOST:
            log_lost([in_hand])
        return self._finished

    def _work(self, session: Session) -> Ended:
        in_hand, lane = self._in_hand, self._in_hand.lane
        fence: Any = in_hand.fence
        with writing(session, lane.mapping) as writer:
            if not lock_claim(writer, lane.mapping, fence):
                return self._ended(writer, fence)
            self._may_be_finished = False
            job = session.get(fence.entity, fence.identity, options=self._calls.options)
            if job is None:
                text = f"a criterion of the session hides {fence!r} from its handler: have the "
                raise _Over(ArgumentError(f"{text}criterion show all jobs that the queue claims"))
            connection = writer.connection
            connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        event.listen(session, "before_commit", _refuse_commit)
        try:
            outcome = self._call(session, with_fence(job, fence))
        except Exception as error:
            raise _Over(_explained(error)) from None
        event.remove(session, "before_commit", _refuse_commit)
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except DBAPIError as error:
            if self._calls.transactions.is_away(error):
                raise
            if not (isinstance(outcome, NotDone) and is_failed_transaction(error)):
                raise _Over(_explained(error, ENDED)) from None
        if isinstance(outcome, NotDone):
            raise _Over(outcome)
        values = outcome.values if isinstance(outcome, Done) else None
        then, delete = branch_of(outcome), self._calls.delete
        finish = partial(lane.complete, session, [fence], then, delete=delete, values=values)
        status = vars(job).get(lane.status_key, self._status)
        is_lost = instance_state(job).deleted or status != self._status
        if is_lost:  # perhaps it has only moved on; a finish would tell of a lost claim
            with writing(session, lane.mapping) as writer:
                is_lost = not lock_claim(writer, lane.mapping, fence)
        # We hold its lock: nobody else has changed it.
        if is_lost or claims_lost_by(finish):
            raise _Over(ArgumentError(CHANGED))
        self._finished = outcome
        self._may_be_finished = True  # the COMMIT follows, whose answer may be lost
        return Ended.FINISHED

    def _call(self, session: Session, job: Any) -> Finished | NotDone:
        """Call the handler, and flush what it has done."""
        in_hand, calls = self._in_hand, self._calls
        transaction = session.get_transaction()
        if in_hand.given_up is not None:  # the wait for the lock may have outlasted the grace
            raise in_hand.given_up
        if in_hand.lane.mapping.listeners and not self._begun:  # the claim is not lost
            self.context.run(tell_start, in_hand)
        self._begun = True
        try:
            given = session.info.get(GIVEN, session)
            outcome = calls.call(in_hand.lane, self.context, given, job)
        finally:
            if self._process != os.getpid():
                _end_child(sys.exc_info()[1])
        if in_hand.given_up is not None:
            raise in_hand.given_up
        if not isinstance(outcome, NotDone):
            session.flush()
        while (nested := session.get_nested_transaction()) is not None:
            nested.commit()  # which the handler has left open: ours would take it along
        if session.get_transaction() is not transaction:
            raise ArgumentError(ENDED)
        return outcome

    def _ended(self, writer: Writer, fence: Fence) -> Ended:
        """Tell how a job has ended whose claim is gone.

        A COMMIT that was not answered may have failed, and then somebody else may have taken the
        job: only its row tells.
        """
        queue = self._in_hand.lane.queue
        then = word_of(queue.mapping, branch_of(self._finished) or queue.then)
        ours = self._may_be_finished and is_as_finished(writer, queue.mapping, fence, then)
        return Ended.FINISHED if ours else Ended.LOST


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
    attrs = state.mapper.attrs
    names = sorted(n for n in state.committed_state if not getattr(attrs[n], "viewonly", False))
    if names and state.session is None:
        log.error(
            "a handler has set %s of %s. The job is detached, and this change is not saved: "
            "declare the handler with transactional=True, or write in a session of your own",
            ", ".join(names),
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


def tell_start(in_hand: InHand) -> None:
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
        with called_on(queue):
            tell(queue.mapping, Event("after_lock_lost", "check", queue.entity))


@dataclass
class Calls:
    """Call handlers.

    Attributes:
        wait_for_renewal: waits until no renewal of claims is under way.
        delete: whether done jobs are deleted; None: as the model says.
        options: loader options for the jobs of transactional handlers.
        delay: returns how long a failed job waits.
    """

    transactions: Transactions
    delay: Callable[[InHand], timedelta | None]
    delete: bool | None = None
    options: Sequence[Any] = ()
    wait_for_renewal: Callable[[], None] = lambda: None

    #: Whether a handler is ended at its timeout. Otherwise the worker stops waiting for it.
    keeps_timeouts = False

    def __post_init__(self) -> None:
        self.open_session = self.transactions.open_session or self._plain_sessions()

    def _plain_sessions(self) -> Callable[[], Session]:
        return partial(Session, self.transactions.engine)

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

    def handle(self, in_hand: InHand) -> None:
        """Call the handler of a job, and note the outcome.

        Raises:
            BaseException: what the handler raised that is no Exception; the attempt has failed.
                If the worker has interrupted the handler, there was no attempt.
        """
        with Attempt(self, in_hand) as attempt:
            if in_hand.lane.transactional:
                attempt.outcome = attempt.in_transaction()
            else:
                attempt.outcome = self.call(in_hand.lane, attempt.context, in_hand.job)

    def fail(self, in_hand: InHand, error: BaseException) -> None:
        """Note that an attempt has failed, and log it."""
        in_hand.duration = time.monotonic() - in_hand.began
        in_hand.outcome = Failed(error, self.delay(in_hand))
        log_failure(in_hand, error)

    def call(self, lane: Lane[Any], context: Context, *arguments: Any) -> Finished | NotDone:
        """Call a handler, and return the outcome of its job."""
        returned = context.run(lane.handler, *arguments)
        return None if returned is None else lane.outcome_of(returned)

    def interrupt(self) -> bool:
        """Interrupt all running handlers; return False if that is not possible."""
        return False

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether the worker ended the attempt, not the handler: it does not count then."""
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether an error in the supervisor ends the run without any wait."""
        return False
