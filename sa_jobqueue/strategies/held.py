"""held: lock ready rows and mark nothing; the transaction is the claim.

Claim, work and finish happen in one transaction: one commit for each batch. When a
connection dies, its rows are claimable at once, and the attempt is not counted: a job
that kills its worker comes back again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import Connection, Executable, select
from sqlalchemy.exc import DBAPIError

from ..databases import is_lock_timeout, locks_are_assumed
from ..errors import NotClaimed, UnsupportedDatabase
from ..fence.token import Hold, Identity, LetGo
from ..model.keys import by_key, key_values, keys_of
from ..sessions.transactions import connected_outside_pool
from ..sessions.writer import Writer
from .ready_rows import ReadyRows
from .spec import Request, Taken
from .strategy import Strategy, check_transaction

log = logging.getLogger("sa_jobqueue.claim")


class Held(Strategy):
    """Lock rows, and mark nothing."""

    name = "held"
    marks: ClassVar[bool] = False
    any_class: ClassVar[bool] = True

    def take(self, writer: Writer, request: Request) -> Taken:
        check_transaction(writer, "strategy 'held' keeps row locks until the transaction ends")
        jobs = [job for job, _ in self.lock_ready(writer, request)]
        if jobs and self.mapping.table not in self.database.proved_tables:
            identities = keys_of(self.mapping, jobs[:1], rows=request.rows)
            prove_locks(writer, self.ready, identities[0])
        # A new round waits for the row lock, and sees the status that a finish writes. Without a
        # status a finish writes the round itself.
        rounds = {} if self.mapping.is_queue else self.rounds(request, jobs)
        hold = RowLocks(writer.connection.get_transaction(), rounds)
        writer.undo_on_savepoint_rollback(hold.void)
        return Taken(jobs, hold=hold)

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        return [*self.ready.level_statements, self.lock_next(first=not from_head)]


class RowLocks(Hold):
    """The row locks of a transaction, which last until it ends."""

    def __init__(self, transaction: object, rounds: Mapping[Identity, int]) -> None:
        self._transaction: object | None = transaction
        self.rounds = rounds

    def void(self) -> None:
        """Forget the row locks: the savepoint that they were taken in was rolled back."""
        self._transaction = None

    def still_held(self, connection: Connection, identities: Sequence[Identity]) -> list[Identity]:
        """Return all of the rows, in the transaction that locked them."""
        if self._transaction is None or connection.get_transaction() is not self._transaction:
            raise NotClaimed(
                "a held claim must be finished in the transaction that claimed it. That "
                "transaction has ended, and its row locks are gone: claim, work and finish in "
                "one transaction"
            )
        return list(identities)

    def let_go(self, connection: Connection, identities: Sequence[Identity], when: LetGo) -> None:
        """Do nothing: the end of the transaction unlocks the rows."""


# Proof by a second connection that a locked row is kept from others.
#
# A claim that marks counts what it has marked. A held claim marks nothing, and has the row locks
# alone: so the first one of an engine and a table asks a second connection for one of its rows,
# which FOR UPDATE NOWAIT must refuse.


def prove_locks(writer: Writer, ready: ReadyRows, identity: tuple[Any, ...]) -> None:
    """Prove once for an engine and a table that a row of this claim is kept from others.

    Args:
        identity: the primary key of a row that the claim has locked.

    Raises:
        UnsupportedDatabase: another connection can lock the row too.
    """
    database, table = ready.database, ready.mapping.table
    if locks_are_assumed(writer.connection.dialect):
        return
    try:
        with connected_outside_pool(writer.connection.engine) as second:
            sees_it = _sees_same_row(writer.connection, second, ready, identity)
            kept_out = not sees_it or is_kept_out(second, ready, identity)
    except DBAPIError as error:
        log.warning("the row locks of %s could not be proved: %s", ready.mapping, error)
    else:
        if not kept_out:
            raise UnsupportedDatabase(
                f"row locks do not hold here: another connection could lock row {identity} of "
                f"{table.description!r} too, and nothing else protects a held claim. Use "
                "strategy='auto', which counts the rows that it marks. Or use a server and a proxy "
                "that obey FOR UPDATE"
            )
        if not sees_it:
            log.info("the row locks of %s could not be proved: others see no row", ready.mapping)
    database.proved_tables.add(table)


def is_kept_out(connection: Connection, ready: ReadyRows, identity: tuple[Any, ...]) -> bool:
    """Tell whether a connection is refused a row that another one has locked."""
    read = ready.locked(_by_key(ready), nowait=True)
    try:
        return connection.execute(read, _parameters(identity)).first() is None
    except DBAPIError as error:
        if not is_lock_timeout(error):
            raise
        return True


def _sees_same_row(
    first: Connection, second: Connection, ready: ReadyRows, identity: tuple[Any, ...]
) -> bool:
    """Tell whether a second connection means the same table by its name, and sees the row there.

    It does not where the session chose a schema, a role or a database by itself, nor where the
    row is the session's own, and not committed.
    """
    which = select(ready.database.table_identity(ready.mapping.table))
    if first.execute(which).scalar() != second.execute(which).scalar():
        return False
    return second.execute(_by_key(ready), _parameters(identity)).first() is not None


def _by_key(ready: ReadyRows) -> Any:
    """Select the key of one row, whatever its status is."""
    read = select(*ready.mapping.keys).where(ready.key_is_in("sa_jobqueue_keys"))
    return by_key(read, ready.mapping.table, ready.database)


def _parameters(identity: tuple[Any, ...]) -> dict[str, Any]:
    return {"sa_jobqueue_keys": key_values([identity])}
