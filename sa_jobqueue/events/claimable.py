"""What a verb calls that has made jobs claimable: workers are woken after its commit.

The workers of this process are called when the transaction has ended. Where the class has
``__queue_args__ = {"notify": True}``, and the database sends notifications, one is sent within
the transaction: the server delivers it with the COMMIT. Each is done once for a class and a
transaction, or a savepoint; what a rolled-back savepoint took with it is done again.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from sqlalchemy import RootTransaction, TwoPhaseTransaction

from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..sessions.transaction_end import TransactionEnd
from ..sessions.writer import Writer
from .channel import channel_of
from .notes import call_at_end_of

_noted: WeakKeyDictionary[RootTransaction, set[QueueMapping]] = WeakKeyDictionary()


def note_claimable(writer: Writer, mapping: QueueMapping) -> None:
    """Wake the workers of a class, once the verb's transaction is committed.

    A verb asks ``if mapping.wakes:`` before it calls this.

    Raises:
        ArgumentError: a notification in a two-phase transaction, which PostgreSQL refuses.
    """
    noted = _noted_in(writer)
    if noted is None:
        _notify(writer, mapping)
        _wake(mapping)
    elif mapping not in noted:
        _notify(writer, mapping)
        noted.add(mapping)

        def ended(end: TransactionEnd) -> None:
            noted.discard(mapping)
            if end is not TransactionEnd.ROLLED_BACK:
                _wake(mapping)

        call_at_end_of(writer, ended)


def _noted_in(writer: Writer) -> set[QueueMapping] | None:
    """Return what was noted in the writer's transaction; None under AUTOCOMMIT."""
    if writer.in_autocommit:
        return None
    transaction = writer.connection.get_transaction() or writer.connection.begin()
    return _noted.setdefault(transaction, set())


def _wake(mapping: QueueMapping) -> None:
    for wake in mapping.wake_calls:
        wake()


def _notify(writer: Writer, mapping: QueueMapping) -> None:
    if not (mapping.args.notify and writer.database.notifies):
        return
    if isinstance(writer.connection.get_transaction(), TwoPhaseTransaction):
        raise ArgumentError(
            f"{mapping}.__queue_args__ has 'notify', and PostgreSQL cannot prepare a transaction "
            "that has sent a notification. Use a session without twophase, or remove 'notify': "
            "workers then look for jobs at intervals"
        )
    writer.connection.exec_driver_sql(f'NOTIFY "{channel_of(mapping.table)}"')
