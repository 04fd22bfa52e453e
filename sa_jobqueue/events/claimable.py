"""What a verb calls that has made jobs claimable: workers are woken after its commit.

The workers of this process are called when the transaction has ended. Where the class has
``__queue_args__ = {"notify": True}``, and the database sends notifications, one is sent right
before the connection's COMMIT: the server delivers it with the COMMIT. Each is done once for a
class and a transaction.

A notification that was sent earlier could be lost: a rollback to a savepoint takes it along, and a
session does not learn of the savepoints of its connection, or of those in SQL.

The end of a claim frees its serial key, and so makes other jobs claimable. If its transaction then
claims from the same queue, and gets all that it finds, nothing is left for others, and nobody is
woken: a worker finds what it has freed by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError

from ..dialects import database_of
from ..dialects.connections import listen_to
from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..sessions.transaction_end import TransactionEnd
from ..sessions.writer import Writer
from .channel import channel_of
from .notes import call_at_end_of


@dataclass(frozen=True)
class _Note:
    """Jobs of a class can be claimed, or may be: what limits their serial keys has freed some."""

    mapping: QueueMapping
    freed_by: object | None


@dataclass(eq=False)
class _Notes:
    """What was noted in a transaction of a connection.

    Attributes:
        waking: for these, workers are called when the verb's transaction has ended. That of a
            session may end before that of its connection, which it has joined.
        notifying: for these, a notification is sent with the COMMIT.
    """

    waking: set[_Note] = field(default_factory=set)
    notifying: set[_Note] = field(default_factory=set)


_noted: WeakKeyDictionary[RootTransaction, _Notes] = WeakKeyDictionary()
_watched: WeakSet[Connection] = WeakSet()


def note_claimable(
    writer: Writer, mapping: QueueMapping, *, freed_by: object | None = None
) -> None:
    """Wake the workers of a class, once the verb's transaction is committed.

    A verb asks ``if mapping.wakes:`` before it calls this.

    Args:
        freed_by: the end of a claim has freed keys that this limits; None: jobs can be claimed.

    Raises:
        ArgumentError: a notification in a two-phase transaction, which PostgreSQL refuses.
    """
    if writer.in_autocommit:
        if _notifies(writer, mapping):
            _notify(writer.connection, [mapping])
        _wake(mapping)
        return
    notes, noted = _notes_in(writer), _Note(mapping, freed_by)
    if noted in notes.waking:
        return
    is_new = _notifies(writer, mapping) and noted not in notes.notifying
    if is_new:
        _notify_at_commit(writer.connection)
        notes.notifying.add(noted)
    notes.waking.add(noted)

    def ended(end: TransactionEnd) -> None:
        wakes = noted in notes.waking
        notes.waking.discard(noted)
        if end is not TransactionEnd.ROLLED_BACK:
            if wakes:
                _wake(mapping)
        elif is_new:
            notes.notifying.discard(noted)

    call_at_end_of(writer, ended)


def forget_freed(writer: Writer, freed_by: object) -> None:
    """Wake nobody for keys that were freed in this transaction: their jobs are claimed.

    Not in a savepoint, which may be rolled back without the end of the claims that freed them.
    """
    if writer.in_autocommit or writer.connection.in_nested_transaction():
        return
    notes = _notes_in(writer)
    for noted in (notes.waking, notes.notifying):
        noted -= {note for note in noted if note.freed_by is freed_by}


def _notes_in(writer: Writer) -> _Notes:
    """Return what was noted in the writer's transaction."""
    transaction = writer.connection.get_transaction() or writer.connection.begin()
    return _noted.setdefault(transaction, _Notes())


def _wake(mapping: QueueMapping) -> None:
    for wake in mapping.wake_calls:
        wake()


def _notifies(writer: Writer, mapping: QueueMapping) -> bool:
    """Tell whether a notification is to be sent."""
    if not (mapping.args.notify and writer.database.notifies):
        return False
    if isinstance(writer.connection.get_transaction(), TwoPhaseTransaction):
        raise ArgumentError(
            f"{mapping}.__queue_args__ has 'notify', and PostgreSQL cannot prepare a transaction "
            "that has sent a notification. Use a session without twophase, or remove 'notify': "
            "workers then look for jobs at intervals"
        )
    return True


def _notify_at_commit(connection: Connection) -> None:
    """Notice the COMMITs of a connection."""
    if connection not in _watched:
        _watched.add(connection)
        listen_to(connection, "commit", _committing)


def _committing(connection: Connection) -> None:
    """Send the notifications, right before the COMMIT."""
    transaction = connection.get_transaction()
    notes = None if transaction is None else _noted.get(transaction)
    if notes is None:
        return
    try:
        _notify(connection, (note.mapping for note in notes.notifying))
    except DBAPIError:
        # A transaction that has failed commits nothing, and its COMMIT raises no error either.
        if connection.invalidated or not database_of(connection).refuses_commit(connection):
            raise


def _notify(connection: Connection, mappings: Iterable[QueueMapping]) -> None:
    for channel in sorted({channel_of(mapping.table) for mapping in mappings}):
        connection.exec_driver_sql(f'NOTIFY "{channel}"')
