"""How a transaction of a plain Connection ended: the calls of a verb that had no session."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from sqlalchemy import Connection

from ..dialects import database_of
from ..dialects.after_commit import TransactionHooks, add_hooks, hooks_of
from ..dialects.connections import listen_to
from ..sessions.transaction_end import AtEnd, TransactionEnd

log = logging.getLogger("sa_jobqueue.events")

_HOOKS = "events"


def call_at_connection_end(connection: Connection, call: AtEnd) -> None:
    """Call a function when the savepoint that is open now, or the transaction, has ended."""
    calls = hooks_of(connection, _HOOKS)
    if not isinstance(calls, _Calls):
        calls = _Calls()
        add_hooks(connection, _HOOKS, calls)
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
