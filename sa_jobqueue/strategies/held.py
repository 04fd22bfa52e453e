"""held: lock ready rows and mark nothing; the transaction is the claim.

Claim, work and finish happen in one transaction: one commit for each batch. When a
connection dies, its rows are claimable at once, and the attempt is not counted: a job
that kills its worker comes back again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import Connection, Executable

from ..dialects import Database
from ..errors import NotClaimed, UnsupportedDatabase
from ..fence.token import Hold, Identity, LetGo
from ..model.keys import keys_of
from ..model.mapping import QueueMapping
from ..sessions.writer import Writer
from .parts.lock_proof import prove_locks
from .parts.ready_lock import ReadyLock, refusal_without_skip_locked
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy


class Held(Strategy):
    """Lock rows, and mark nothing."""

    name = "held"
    marks: ClassVar[bool] = False

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._ready_lock = ReadyLock(self.ready, marks=False)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return refusal_without_skip_locked(database)

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.in_autocommit:
            raise UnsupportedDatabase(
                "strategy 'held' needs a transaction that keeps its row locks, and an AUTOCOMMIT "
                "connection has no transaction. Use strategy='auto', or a session without "
                "AUTOCOMMIT"
            )
        locked = self._ready_lock.lock(writer, request)
        jobs = locked if request.rows else [entity for entity, _ in locked]
        if jobs and self.mapping.table not in self.database.proved_tables:
            identities = keys_of(self.mapping, jobs[:1], rows=request.rows)
            prove_locks(writer, self.ready, identities[0])
        hold = RowLocks(writer.connection.get_transaction())
        writer.undo_on_savepoint_rollback(hold.void)
        return Taken(jobs, hold=hold)

    def statements(self) -> list[Executable]:
        return [*self.ready.levels.statements(), self._ready_lock.read.entities]

    def explainable(self) -> list[Executable]:
        return [*self.ready.levels.statements(), self._ready_lock.read_from_start.entities]


class RowLocks(Hold):
    """The row locks of a transaction, which last until it ends."""

    def __init__(self, transaction: object) -> None:
        self._transaction: object | None = transaction

    def void(self) -> None:
        """Forget the row locks: the savepoint that they were taken in was rolled back."""
        self._transaction = None

    def still_held(
        self, connection: Connection, mapping: QueueMapping, identities: Sequence[Identity]
    ) -> list[Identity]:
        """Return all of the rows, in the transaction that locked them."""
        if self._transaction is None or connection.get_transaction() is not self._transaction:
            raise NotClaimed(
                "a held claim must be finished in the transaction that claimed it. That "
                "transaction has ended, and its row locks are gone: claim, work and finish in "
                "one transaction"
            )
        return list(identities)

    def let_go(
        self, connection: Connection, mapping: QueueMapping, identities: Sequence[Any], when: LetGo
    ) -> None:
        """Do nothing: the end of the transaction unlocks the rows."""
