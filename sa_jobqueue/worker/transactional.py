"""Transactional handlers: the effects of a handler and the finish of its job are one commit.

::

    @invoices.handler(transactional=True)
    def book(session: Session, invoice: Invoice) -> None:
        session.add(LedgerEntry(invoice=invoice))

The claim was committed before. The handler's transaction begins with a locking read behind the
job's fence: a claim that was lost is not handled, and the lock is the job's lease from then on. So
the job leaves the heartbeat first, whose renewal would wait for the lock, and hold up all others.

What the handler does not want to be done, or what fails, rolls its effects back; the job is then
failed, retried or cancelled as any other, in the next turn. When the answer to a COMMIT is lost,
the transaction is run again: then the locking read tells whether the COMMIT has succeeded.
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
from ..fence.lock import lock_claim
from ..sessions.writer import writing
from .in_hand import Ended, InHand
from .outcomes import Cancel, Retry
from .transactions import Transactions

T = TypeVar("T")

ENDED = (
    "a transactional handler has ended the transaction that it shares with the finish of its job: "
    "it commits and rolls back within begin_nested() only"
)

CHANGED = (
    "a transactional handler has deleted its job, or changed its key, status, owner or owner_date: "
    "by these the worker knows it"
)


FAILED = (
    "a statement of a transactional handler has failed, and the server refuses all further "
    "statements of its transaction: run a statement that may fail within session.begin_nested(), "
    "and catch its error outside of that block"
)

BEGUN = (
    "the transaction of a transactional handler is begun already, and commits with the finish of "
    "its job: use session.begin_nested(), or no begin at all"
)


class _LostClaim(Exception):
    """The claim is not ours any more: its job is not handled."""


class _NotDone(Exception):
    """The handler wants something else for its job: its effects are rolled back."""

    def __init__(self, outcome: Retry | Cancel) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class _Raised(Exception):
    """The handler raised an exception: whatever it is, its transaction is not run again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


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
    _may_be_committed: bool = False
    _outcome: str | None = None
    _connection: Any = None

    def run(self) -> Retry | Cancel | str | None:
        """Handle the job and finish it; return the outcome.

        Unless the outcome is a Retry or a Cancel, the job has ended.

        Raises:
            Exception: what the handler raised, or the database, after its effects were
                rolled back.
        """
        lane = self.in_hand.lane
        try:
            outcome = self.transactions.run_in(
                self.open_session, self._work, mapper=lane.queue.mapping.mapper
            )
        except _LostClaim:
            ended = Ended.FINISHED if self._may_be_committed else Ended.LOST
            self.in_hand.ended = ended
            return self._outcome
        except _NotDone as given:
            return given.outcome
        except _Raised as raised:
            raise raised.error from raised.error.__cause__
        self.in_hand.ended = Ended.FINISHED
        return outcome

    def _work(self, session: Session) -> Retry | Cancel | str | None:
        job = self._locked(session)
        try:
            with _kept_open(session, self._connection):
                returned = self.call(session, job=job)
                if self.in_hand.given_up is not None:
                    raise self.in_hand.given_up
                session.flush()
            outcome = self.in_hand.lane.outcome_of(returned)
        except Exception as error:
            raise _Raised(_explained(error)) from error
        if isinstance(outcome, Retry | Cancel):
            raise _NotDone(outcome)
        self._finish(session, outcome)
        self._outcome = outcome
        self._may_be_committed = True
        return outcome

    def _locked(self, session: Session) -> Any:
        """Lock the job's row, and load it; only then is it handled."""
        fence, mapping = fence_of(self.in_hand.job), self.in_hand.lane.queue.mapping
        with writing(session, mapping) as writer:
            self._connection = writer.connection
            if not lock_claim(writer, mapping, fence):
                raise _LostClaim
            self._may_be_committed = False
            job = session.get(fence.entity, fence.identity, options=self.options)
        if job is None:
            raise _Raised(ArgumentError(f"a criterion of the session hides {fence!r} from get()"))
        return with_fence(job, fence)

    def _finish(self, session: Session, outcome: str | None) -> None:
        fence: Any = fence_of(self.in_hand.job)
        try:
            self.in_hand.lane.complete(session, [fence], outcome, delete=self.delete)
        except ClaimLost:  # we hold its lock: nobody else has changed it
            raise _Raised(ArgumentError(CHANGED)) from None
        except DBAPIError as error:
            if is_failed_transaction(error):
                raise _Raised(_explained(error)) from error
            raise


def _explained(error: Exception) -> Exception:
    """Return an error that names the way out, where SQLAlchemy or the server names none."""
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
