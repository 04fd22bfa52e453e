"""Undo what the library noted in a transaction, or a savepoint, that is rolled back.

A session undoes what it flushed itself. This module undoes what the library notes in addition, such
as attributes set as committed, or the fence of an entity. The undo happens with the rollback of the
open savepoint, or, once it is released, of the transaction or savepoint around it.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from .transaction_end import TransactionEnd, call_at_end

Undo = Callable[[], None]


def undo_on_rollback(session: Session, undo: Undo) -> None:
    """Call `undo` unless the savepoint that is open now, or else the transaction, is committed."""

    def ended(end: TransactionEnd) -> None:
        if end is not TransactionEnd.COMMITTED:
            undo()

    call_at_end(session, ended)


def undo_on_savepoint_rollback(session: Session, undo: Undo) -> None:
    """Call `undo` if a savepoint is open now and is rolled back."""
    if session.in_nested_transaction():
        undo_on_rollback(session, undo)
