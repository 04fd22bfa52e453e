"""The connections of a load: each holds the lock of its slot for as long as it lives.

A server finishes the statement of a killed client: a DELETE was seen to remove nothing,
and two seconds later 200 rows were there. So each connection holds a lock of its own,
which the server frees when the connection's last transaction has ended; restore and
rollback wait for all of them. SQLite needs no lock: its transactions end with their
process.

A slot is the number of a connection among those that work for a load at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, Engine

from ...dialects import database_of
from ...dialects.named_locks import ConnectionLocks, Deadline
from ...errors import LockTimeout, UnsupportedDatabase
from ...sessions.transactions import connected_outside_pool

#: Seconds between two tries.
_RETRY = 0.05


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """Connect outside the pool; a database in memory has only the pool's connection."""
    with engine.connect() as connection:
        if not database_of(connection).seen_by_others(connection):
            yield connection
            return
    with connected_outside_pool(engine) as connection:
        yield connection


def hold_slot(connection: Connection, load: str, slot: int, wait: timedelta) -> None:
    """Take the lock of a slot on this connection, which keeps it until it ends.

    Raises:
        LockTimeout: another connection held the lock all the time.
        UnsupportedDatabase: the connection goes through a pooler.
    """
    locks = _locks_of(connection)
    if locks is None:
        return
    database = database_of(connection)
    if database.through_pooler(connection):
        raise UnsupportedDatabase(
            f"This connection to {database} goes through a connection pooler, so a bulk load could "
            "not tell when the transactions of a killed process have ended. Give the source an "
            "engine whose URL names the server itself."
        )
    database.notice_silence(connection)
    key, deadline = locks.key(connection, f"bulk load {load} {slot}"), Deadline(wait)
    while not locks.take(connection, key=key, seconds=0):
        if deadline.passed:
            raise LockTimeout(
                f"The server still works for this load, as {locks.find_holder(connection, key)}: "
                "wait until it has finished, or end that connection."
            )
        connection.rollback()
        time.sleep(_RETRY)
    connection.commit()


def wait_for_slots(engine: Engine, load: str, slots: int, wait: timedelta) -> None:
    """Wait until no connection works for this load any more.

    Raises:
        LockTimeout: a connection still does.
    """
    deadline = Deadline(wait)
    with connected_outside_pool(engine) as connection:
        for slot in range(slots):
            left = timedelta(seconds=deadline.left(wait.total_seconds()))
            hold_slot(connection, load, slot, left)


def _locks_of(connection: Connection) -> ConnectionLocks | None:
    locks = database_of(connection).named_locks()
    return locks if isinstance(locks, ConnectionLocks) else None
