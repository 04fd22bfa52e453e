"""Proof by a second connection that a locked row is kept from others.

A claim that marks counts what it has marked. A held claim marks nothing, and has the row locks
alone: so the first one of an engine and a table asks a second connection for one of its rows,
which FOR UPDATE NOWAIT must refuse.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from ...dialects import is_lock_timeout, locks_are_assumed
from ...errors import UnsupportedDatabase
from ...model.keys import by_key, key_values
from ...sessions.transactions import connected_outside_pool
from ...sessions.writer import Writer
from .ready_rows import ReadyRows

log = logging.getLogger("sa_jobqueue.claim")


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
