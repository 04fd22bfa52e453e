"""Transactional handlers: the effects of a handler and the finish of its job are one commit.

::

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

If the handler fails, or returns a Retry or a Cancel, its effects are rolled back, and the next turn
fails, retries or cancels the job. If the answer to a COMMIT is lost, the transaction is run again,
and the locking read, or what it misses, tells whether the COMMIT has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from ..dialects import is_failed_transaction
from ..errors import ArgumentError, ClaimLost
from ..fence.claim import fence_of, with_fence
from ..fence.statements import is_as_finished, lock_claim
from ..fence.token import Fence
from ..model.mapping import word_of
from ..sessions.writer import Writer, writing
from .in_hand import Ended, InHand
from .log_records import log_lost
from .outcomes import Cancel, Done, Finished, Retry, branch_of
from .transactions import Transactions

T = TypeVar("T")

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


class _LostClaim(Exception):
    """The claim is not ours any more: its job is not handled.

    Attributes:
        ended: whether the COMMIT of an earlier try has finished the job.
    """

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self.ended = ended


class _NotDone(Exception):
    """The handler returned a Retry or a Cancel: its effects are rolled back."""

    def __init__(self, outcome: Retry | Cancel) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class _Raised(Exception):
    """The handler raised an exception: whatever it is, its transaction is not run again.

    It is raised `from None`, because a deadlock that it came from would be run again.
    """

    def __init__(self, error: Exception, cause: Exception | None = None) -> None:
        super().__init__(error)
        self.error = error
        if cause is not None:
            error.__cause__ = cause


@dataclass
class HandlersTransaction(Generic[T]):
    """The transaction of a handler.

    Attributes:
        open_session: opens the session of the handler.
        call: calls the handler with that session and the job.
        delete: whether a done job is deleted; None goes by the model.
        options: loader options for the job.
    """

    transactions: Transactions
    in_hand: InHand[T]
    open_session: Callable[[], Session]
    call: Callable[..., Any]
    delete: bool | None
    options: Any
    _outcome: Finished = None
    _connection: Any = None

    def run(self) -> Finished | Retry | Cancel:
        """Handle the job and finish it; return the outcome.

        Unless the outcome is a Retry or a Cancel, the job has ended.

        Raises:
            Exception: the error of the handler or of the database, after the effects were
                rolled back.
        """
        lane = self.in_hand.lane
        try:
            outcome = self.transactions.run_in(
                self.open_session, self._work, mapper=lane.queue.mapping.mapper
            )
        except _LostClaim as lost:
            self.in_hand.ended = lost.ended
            if lost.ended is Ended.LOST:
                log_lost([self.in_hand])
            return self._outcome
        except _NotDone as given:
            return given.outcome
        except _Raised as raised:
            raise raised.error from raised.error.__cause__
        self.in_hand.ended = Ended.FINISHED
        return outcome

    def _work(self, session: Session) -> Finished | Retry | Cancel:
        job = self._locked(session)
        try:
            with _kept_open(session, self._connection):
                self._check_given_up()  # the wait for the lock may have outlasted the grace
                returned = self.call(session, job=job)
                self._check_given_up()
                outcome = self.in_hand.lane.outcome_of(returned)
                if not isinstance(outcome, Retry | Cancel):
                    session.flush()
            if not isinstance(outcome, Retry | Cancel):
                _release_nested(session)
        except Exception as error:
            raise _Raised(_explained(error)) from None
        if isinstance(outcome, Retry | Cancel):
            raise _NotDone(outcome)
        self._release_savepoint()
        self._finish(session, outcome)
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
                raise _LostClaim(self._ended(writer, fence))
            self.in_hand.may_be_finished = False
            job = session.get(fence.entity, fence.identity, options=self.options)
            self._connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        if job is None:
            raise _Raised(
                ArgumentError(
                    f"a criterion of the session hides {fence!r} from its handler: have the "
                    "criterion show all jobs that the queue claims"
                )
            )
        return with_fence(job, fence)

    def _release_savepoint(self) -> None:
        """Release the savepoint that was set before the handler's first statement."""
        try:
            self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except DBAPIError as error:
            if is_failed_transaction(error):
                raise _Raised(_explained(error)) from None
            if self.transactions.is_away(error):
                raise
            raise _Raised(ArgumentError(ENDED), error) from None

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

    def _finish(self, session: Session, outcome: Finished) -> None:
        fence: Any = fence_of(self.in_hand.job)
        values = outcome.values if isinstance(outcome, Done) else None
        try:
            self.in_hand.lane.complete(
                session, [fence], branch_of(outcome), delete=self.delete, values=values
            )
        except ClaimLost:  # we hold its lock: nobody else has changed it
            raise _Raised(ArgumentError(CHANGED)) from None
        except DBAPIError as error:
            if is_failed_transaction(error):
                raise _Raised(_explained(error)) from None
            raise


def _release_nested(session: Session) -> None:
    """Release the savepoints that the handler has left open: ours would take them with it."""
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()


def _explained(error: Exception) -> Exception:
    """Return an error with the way out, if SQLAlchemy's or the server's error has none."""
    if is_failed_transaction(error):
        text = FAILED
    elif type(error) is InvalidRequestError and "transaction is already begun" in str(error):
        text = BEGUN
    else:
        return error
    explained = ArgumentError(text)
    explained.__cause__ = error
    return explained


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
