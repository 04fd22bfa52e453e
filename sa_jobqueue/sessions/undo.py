"""Undo what the library noted in a transaction, or a savepoint, that is rolled back.

A session undoes what it flushed itself. What the library notes beside it, such as
attributes set as committed, or the fence of an entity, is undone here: with the savepoint
that is open, or, once that is released, with the transaction or savepoint around it.

Limit: a session may commit into a transaction that somebody else began on its connection
and rolls back later. That is not noticed here.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_INFO = "sa_jobqueue.undo"

Undo = Callable[[], None]


def undo_on_rollback(session: Session, undo: Undo) -> None:
    """Call `undo` if the savepoint that is open now, or else the transaction, is rolled back."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is None:
        return
    session.info.setdefault(_INFO, {}).setdefault(transaction, []).append(undo)
    if not event.contains(session, "after_transaction_end", _ended):
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)


def undo_on_savepoint_rollback(session: Session, undo: Undo) -> None:
    """Call `undo` if the savepoint that is open now, if there is one, is rolled back."""
    if session.in_nested_transaction():
        undo_on_rollback(session, undo)


def _committed(session: Session) -> None:
    """Hand the callbacks of a released savepoint to the transaction around it."""
    undos: dict[SessionTransaction, list[Undo]] = session.info.get(_INFO, {})
    savepoint = session.get_nested_transaction()
    if savepoint is None:
        undos.clear()
    elif savepoint in undos:
        undos.setdefault(_around(savepoint), []).extend(undos.pop(savepoint))


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Call the callbacks that are left: their transaction was not committed."""
    for undo in reversed(session.info.get(_INFO, {}).pop(transaction, ())):
        undo()


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """Return the savepoint, or else the transaction, around a savepoint."""
    around = savepoint.parent
    while around is not None and around.parent is not None and not around.nested:
        around = around.parent
    assert around is not None  # a savepoint is always inside of a transaction
    return around
