"""Connections that insert hold a lock, so that a successor can tell when they are gone.

A server finishes the statement of a client that was killed: a DELETE was seen to
remove nothing, and two seconds later 200 rows were there. So each connection holds a
lock of its own for as long as it lives, which the server frees when its last
transaction is ended; restore and rollback wait for all of them. SQLite needs none: its
transactions end with their process.
"""

from __future__ import annotations

import time
from datetime import timedelta

from sqlalchemy import Connection, Engine

from ...dialects import database_of
from ...dialects.named_locks import ConnectionLocks, Deadline
from ...errors import LockTimeout, UnsupportedDatabase
from ...sessions.transactions import connected_outside_pool

#: Seconds between two tries.
_AGAIN = 0.05


def hold_slot(connection: Connection, load: str, slot: int, wait: timedelta) -> None:
    """Take the lock of a slot on this very connection, which frees it with its end.

    Raises:
        LockTimeout: somebody else had it for so long.
        UnsupportedDatabase: a pooler is in between.
    """
    locks = _locks_of(connection)
    if locks is None:
        return
    database = database_of(connection)
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            f"This connection to {database} goes through a connection pooler: a bulk load could "
            "not tell when a killed one's transactions have ended. Give the source an engine "
            "whose URL names the server itself."
        )
    database.notice_silence(connection)
    name = _name(load, slot)
    key, deadline = locks.key(connection, name), Deadline(wait)
    while not locks.take(connection, key=key, seconds=0):
        if deadline.passed:
            raise LockTimeout(
                f"The server still works for this load, as {locks.find_holder(connection, key)}: "
                "wait until it is through, or end that connection."
            )
        connection.rollback()
        time.sleep(_AGAIN)
    connection.commit()


def await_predecessors(engine: Engine, load: str, slots: int, wait: timedelta) -> None:
    """Wait until no connection is left that worked for this load.

    Raises:
        LockTimeout: one still is.
    """
    deadline = Deadline(wait)
    with connected_outside_pool(engine) as connection:
        for slot in range(slots):
            left = timedelta(seconds=deadline.left(wait.total_seconds()))
            hold_slot(connection, load, slot, left)


def _locks_of(connection: Connection) -> ConnectionLocks | None:
    locks = database_of(connection).named_locks()
    return locks if isinstance(locks, ConnectionLocks) else None


def _name(load: str, slot: int) -> str:
    return f"bulk load {load} {slot}"
