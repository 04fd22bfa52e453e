"""Call functions when a transaction has ended, and tell them how it ended.

A savepoint that is released passes its calls to the savepoint or the transaction around it. A
savepoint that is rolled back makes its calls at once. The transaction makes all other calls when
it has ended and its connections are back in their pools.

A session's `after_commit` also fires when a savepoint is released, and Connection's event
"commit" comes before the COMMIT: neither alone tells that a transaction was committed.

A session undoes what it flushed itself. What the library notes in addition, such as attributes set
as committed, or the fence of an entity, is undone by the functions at the end.

Limit: a session may commit into a transaction that somebody else began on its connection
and rolls back later. That is not noticed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from ..databases import database_of
from ..databases.connections import listen_to

_INFO = "sa_jobqueue.transaction_end"


class TransactionEnd(Enum):
    """How a transaction or a savepoint ended.

    The end is unknown if COMMIT was sent and raised an error: the answer may be lost.
    """

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


AtEnd: TypeAlias = Callable[[TransactionEnd], None]


@dataclass
class _Ends:
    """The calls of a session at the end of its transactions, and the current state of their end."""

    calls: dict[SessionTransaction, list[AtEnd]] = field(default_factory=dict)
    committed: bool = False
    commit_sent: bool = False
    refused: bool = False
    watched: WeakSet[Connection] = field(default_factory=WeakSet)

    def end(self) -> TransactionEnd:
        """Tell how the transaction has ended, and forget it."""
        if self.refused or not (self.committed or self.commit_sent):
            found = TransactionEnd.ROLLED_BACK
        else:
            found = TransactionEnd.COMMITTED if self.committed else TransactionEnd.UNKNOWN
        self.committed = self.commit_sent = self.refused = False
        return found


def call_at_end(session: Session, call: AtEnd, *, of_transaction: bool = False) -> None:
    """Call a function when the savepoint that is open now, or else the transaction, has ended.

    Without :func:`watch_commit` a COMMIT that raised an error counts as rolled back.

    Args:
        of_transaction: call it at the end of the transaction, also in a savepoint.
    """
    transaction = session.get_transaction()
    if not of_transaction:
        transaction = session.get_nested_transaction() or transaction
    if transaction is None:
        return
    _ends_of(session).calls.setdefault(transaction, []).append(call)
    if not event.contains(session, "after_transaction_end", _ended):
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)


def watch_commit(session: Session, connection: Connection) -> None:
    """Notice a COMMIT whose answer is lost, and a COMMIT that the server answers by ROLLBACK."""
    ends = _ends_of(session)
    if connection in ends.watched:
        return
    ends.watched.add(connection)

    def sent(connection: Connection, *_: Any) -> None:
        ends.refused |= database_of(connection).refuses_commit(connection)
        ends.commit_sent = True

    listen_to(connection, "commit", sent)
    listen_to(connection, "commit_twophase", sent)


def _ends_of(session: Session) -> _Ends:
    ends: _Ends = session.info.setdefault(_INFO, _Ends())
    return ends


def _committed(session: Session) -> None:
    """Note a commit; pass the calls of a released savepoint to the transaction around it."""
    ends, savepoint = _ends_of(session), session.get_nested_transaction()
    if savepoint is None:
        ends.committed = True
    elif savepoint in ends.calls:
        ends.calls.setdefault(_around(savepoint), []).extend(ends.calls.pop(savepoint))


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Make the calls of a transaction, or of a savepoint that was not released."""
    ends = _ends_of(session)
    end = ends.end() if transaction.parent is None else TransactionEnd.ROLLED_BACK
    calls = ends.calls.pop(transaction, [])
    for call in calls if end is TransactionEnd.COMMITTED else reversed(calls):
        call(end)


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """Return the savepoint, or else the transaction, around a savepoint."""
    around = savepoint.parent
    while around is not None and around.parent is not None and not around.nested:
        around = around.parent
    assert around is not None  # a savepoint is always inside of a transaction
    return around


def undo_on_rollback(session: Session, undo: Callable[[], None]) -> None:
    """Call `undo` unless the savepoint that is open now, or else the transaction, is committed."""

    def ended(end: TransactionEnd) -> None:
        if end is not TransactionEnd.COMMITTED:
            undo()

    call_at_end(session, ended)
