"""What the verbs note, and what is done after the COMMIT: listeners and workers are called.

A verb asks ``if mapping.listeners:`` before it makes an event. The event waits for the end of the
verb's transaction, and is dropped with a savepoint or a transaction that is rolled back. Under
AUTOCOMMIT it waits for nothing. In a session that joined a transaction of its Connection it waits
for the session's commit.

A verb that has made jobs claimable wakes workers. Those of this process are called when the
transaction has ended. Where the class has ``__queue_args__ = {"notify": True}``, and the database
sends notifications, one is sent right before the connection's COMMIT: the server delivers it with
the COMMIT. Each is done once for a class and a transaction.

A notification that was sent earlier could be lost: a rollback to a savepoint takes it along, and a
session does not learn of the savepoints of its connection, or of those in SQL.

The end of a claim frees its serial key, and so makes other jobs claimable. If its transaction then
claims from the same queue, and gets all that it finds, nothing is left for others, and nobody is
woken: a worker finds what it has freed by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, Engine, RootTransaction, Table
from sqlalchemy.exc import DBAPIError

from ..databases import database_of
from ..databases.connections import TransactionHooks, hooks_of, listen_to
from ..databases.named_locks import digest, slug
from ..model.mapping import QueueMapping
from ..sessions.transaction_end import AtEnd, TransactionEnd, call_at_end, watch_commit
from ..sessions.writer import Writer
from .event import Event, Listener, called_on, calling_queue

log = logging.getLogger("sa_jobqueue.events")


def note(writer: Writer, mapping: QueueMapping, event: Event) -> None:
    """Note an event of a verb: its listeners are called once it is committed."""
    called = _called(mapping, event, writer)
    if called is not None:
        # A claim that was lost is lost however the transaction ends.
        call_at_end_of(writer, called, of_transaction=event.name == "after_lost")


def call_at_end_of(writer: Writer, call: AtEnd, *, of_transaction: bool = False) -> None:
    """Call a function when the verb's savepoint or transaction has ended; in AUTOCOMMIT at once.

    Args:
        of_transaction: call it at the end of the transaction, also in a session's savepoint.
    """
    if writer.in_autocommit:
        call(TransactionEnd.COMMITTED)
    elif writer.of_session is None:
        call_at_connection_end(writer.connection, call)
    else:
        watch_commit(writer.of_session, writer.connection)
        call_at_end(writer.of_session, call, of_transaction=of_transaction)


def tell(mapping: QueueMapping, event: Event) -> None:
    """Tell of an event that has no transaction."""
    called = _called(mapping, event, None)
    if called is not None:
        called(TransactionEnd.COMMITTED)


def _called(mapping: QueueMapping, event: Event, writer: Writer | None) -> AtEnd | None:
    """Tell those who listen within the transaction; return what tells the others at its end."""
    heard_by = [listener for listener in mapping.listeners if listener.hears(event.name)]
    if not heard_by:
        return None
    event = replace(event, queue=calling_queue())
    for listener in heard_by:
        if listener.name is None:
            listener.function(event, writer)

    def ended(end: TransactionEnd) -> None:
        if end is TransactionEnd.COMMITTED or event.name == "after_lost":
            for listener in heard_by:
                if listener.name is not None:
                    _call(listener, event)

    return ended


def _call(listener: Listener, event: Event) -> None:
    try:
        with called_on(None):  # what the listener calls is not of the queue
            listener.function(event)
    except Exception as error:  # the verb is committed: no listener may make it look failed
        log.error("a listener of %s failed: %s", event.name, error, exc_info=error)


def call_at_connection_end(connection: Connection, call: AtEnd) -> None:
    """Call a function when the savepoint that is open now, or the transaction, has ended."""
    calls = hooks_of(connection, _Calls, _Calls)
    calls.watch(connection)
    calls.waiting.append(call)


@dataclass
class _Calls(TransactionHooks):
    """The calls that wait for the end of a connection's transaction.

    Attributes:
        savepoints: the names of the open savepoints, each with the number of calls before it.
    """

    waiting: list[AtEnd] = field(default_factory=list)
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    refused: bool = False
    # Weak: a dropped connection must return to its pool at once.
    _watched: ref[Connection] | None = None

    def watch(self, connection: Connection) -> None:
        """Notice the savepoints of a Connection: it is another one after each checkout."""
        if self._watched is not None and self._watched() is connection:
            return
        self._watched = ref(connection)
        listen_to(connection, "after_cursor_execute", self._executed)
        listen_to(connection, "commit", self._committing)

    def _executed(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        # SQLAlchemy's event of a new savepoint does not tell its name.
        if statement[:10].upper().startswith(("SAVEPOINT ", "ROLLBACK", "RELEASE ")):
            words = statement.upper().rstrip("; ").split()
            self._follow(words[0], words[-1])

    def _follow(self, verb: str, name: str) -> None:
        if verb == "SAVEPOINT":
            self.savepoints.append((name, len(self.waiting)))
            return
        indexes = [index for index, (given, _) in enumerate(self.savepoints) if given == name]
        if verb == "ROLLBACK":
            # A savepoint that we do not know was opened before the first call.
            self._undo(self.savepoints[indexes[-1]][1] if indexes else 0)
        if indexes:
            del self.savepoints[indexes[-1] + (verb == "ROLLBACK") :]  # which keeps the savepoint

    def _undo(self, before: int) -> None:
        undone, self.waiting[before:] = self.waiting[before:], []
        for call in undone:
            call(TransactionEnd.ROLLED_BACK)

    def _committing(self, connection: Connection) -> None:
        self.refused = database_of(connection).refuses_commit(connection)

    # -- the hooks ------------------------------------------------------

    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Make the calls."""
        committed = committed and not self.refused
        self._end(TransactionEnd.COMMITTED if committed else TransactionEnd.ROLLED_BACK)

    def end_interrupted(self) -> None:
        """Make the calls: nobody knows how the transaction has ended."""
        self._end(TransactionEnd.UNKNOWN)

    def after_end_failed(self, error: Exception) -> None:
        """Log it."""
        log.error("a listener failed: %s", error, exc_info=error)

    def on_return(self, driver: Any) -> None:
        """Make the calls that are left: the pool rolls back."""
        self._end(TransactionEnd.ROLLED_BACK)

    def _end(self, end: TransactionEnd) -> None:
        calls, self.waiting, self.refused = self.waiting, [], False
        self.savepoints.clear()
        for call in calls:
            call(end)


@dataclass(frozen=True)
class _Note:
    """Jobs of a class can be claimed, or may be: what limits their serial keys has freed some."""

    mapping: QueueMapping
    freed_by: object | None


_noted: WeakKeyDictionary[RootTransaction, set[_Note]] = WeakKeyDictionary()
_watched: WeakSet[Connection] = WeakSet()


def note_claimable(
    writer: Writer, mapping: QueueMapping, *, freed_by: object | None = None
) -> None:
    """Wake the workers of a class, once the verb's transaction is committed.

    A verb asks ``if mapping.wakes:`` before it calls this.

    Args:
        freed_by: the end of a claim has freed keys that this limits; None: jobs can be claimed.
    """
    if writer.in_autocommit:
        if _notifies(writer, mapping):
            _notify(writer.connection, [mapping])
        _wake(mapping, writer.connection)
        return
    noted, new = _noted_in(writer), _Note(mapping, freed_by)
    if new in noted:
        return
    if _notifies(writer, mapping):
        _notify_at_commit(writer.connection)
    noted.add(new)

    def ended(end: TransactionEnd) -> None:
        if end is TransactionEnd.ROLLED_BACK:
            noted.discard(new)
        elif new in noted:
            _wake(mapping, writer.connection)

    call_at_end_of(writer, ended)


def forget_freed(writer: Writer, freed_by: object) -> None:
    """Wake nobody for keys that were freed in this transaction: their jobs are claimed.

    Not in a savepoint, which may be rolled back without the end of the claims that freed them.
    """
    if not (writer.in_autocommit or writer.connection.in_nested_transaction()):
        noted = _noted_in(writer)
        noted -= {note for note in noted if note.freed_by is freed_by}


def _noted_in(writer: Writer) -> set[_Note]:
    """Return what was noted in the transaction of the writer's connection."""
    transaction = writer.connection.get_transaction() or writer.connection.begin()
    return _noted.setdefault(transaction, set())


def _wake(mapping: QueueMapping, connection: Connection) -> None:
    for wake in mapping.wake_calls:
        wake(connection)


def _notifies(writer: Writer, mapping: QueueMapping) -> bool:
    return mapping.args.notify and writer.database.notifies


def _notify_at_commit(connection: Connection) -> None:
    """Notice the COMMITs of a connection."""
    if connection not in _watched:
        _watched.add(connection)
        listen_to(connection, "commit", _committing)


def _committing(connection: Connection) -> None:
    """Send the notifications, right before the COMMIT; PostgreSQL prepares none in two phases."""
    transaction = connection.get_transaction()
    noted = set[_Note]() if transaction is None else _noted.get(transaction, set())
    try:
        _notify(connection, (note.mapping for note in noted if note.mapping.args.notify))
    except DBAPIError:
        # A transaction that has failed commits nothing, and its COMMIT raises no error either.
        if connection.invalidated or not database_of(connection).refuses_commit(connection):
            raise


def _notify(connection: Connection, mappings: Iterable[QueueMapping]) -> None:
    for channel in sorted({channel_of(mapping.table, connection) for mapping in mappings}):
        connection.exec_driver_sql(f'NOTIFY "{channel}"')


#: PostgreSQL cuts identifiers after 63 bytes.
_READABLE, _HASHED = 30, 20


def schemas_of(bind: Connection | Engine) -> Mapping[str | None, str | None]:
    """Return the ``schema_translate_map`` that statements of a connection go by."""
    return bind.get_execution_options().get("schema_translate_map") or {}


def channel_of(table: Table, bind: Connection | Engine) -> str:
    """Return the name of a table's channel: ASCII, without quotes, at most 63 bytes.

    The schema and the table are hashed, so no two tables share a channel; the readable part is for
    whoever looks at the server.
    """
    schema = schemas_of(bind).get(table.schema, table.schema)
    hashed = digest("channel", schema or "", table.name).hex()[:_HASHED]
    return f"sa_jobqueue-{slug(table.name, _READABLE) or 'table'}-{hashed}"
