"""What is undone where the transaction, or the savepoint, in which it was done is not committed.

A session undoes what it flushed itself. What the library has noted beside it, such as
attributes set as committed, or the fence of an entity, is undone here: with the savepoint
that was open, or, once that is released, with the one around it.

Not undone: what a session has committed into a transaction that somebody else began on its
connection, and rolls back later.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_INFO = "sa_jobqueue.undo"

Undo = Callable[[], None]


def undo_on_rollback(session: Session, undo: Undo) -> None:
    """Have something done if the transaction that is open now, or its savepoint, is undone."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is None:
        return
    session.info.setdefault(_INFO, {}).setdefault(transaction, []).append(undo)
    if not event.contains(session, "after_transaction_end", _ended):
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)


def undo_on_savepoint_rollback(session: Session, undo: Undo) -> None:
    """Have something done if the savepoint that is open now, if any, is undone."""
    if session.in_nested_transaction():
        undo_on_rollback(session, undo)


def _committed(session: Session) -> None:
    """Let the transaction around a released savepoint answer for what was done in it."""
    undos: dict[SessionTransaction, list[Undo]] = session.info.get(_INFO, {})
    savepoint = session.get_nested_transaction()
    if savepoint is None:
        undos.clear()
    elif savepoint in undos:
        undos.setdefault(_around(savepoint), []).extend(undos.pop(savepoint))


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Undo what is left: nothing was committed."""
    for undo in reversed(session.info.get(_INFO, {}).pop(transaction, ())):
        undo()


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """Return the savepoint around one, or the transaction."""
    around = savepoint.parent
    while around is not None and around.parent is not None and not around.nested:
        around = around.parent
    assert around is not None  # a savepoint is in something
    return around
