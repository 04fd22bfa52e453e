"""What the tests of named locks share.

Inner classes are patched for limits that a test can wait for, and for a pooler in between.
"""

from __future__ import annotations

from sa_jobqueue import NamedLock
from sa_jobqueue.dialects import Database
from sa_jobqueue.dialects.innodb import InnoDB, InnoDBNamedLocks
from sa_jobqueue.dialects.named_locks import ConnectionLocks
from sa_jobqueue.dialects.postgresql import PostgreSQL, PostgreSQLNamedLocks
from tests.lockers import NOW

LOCKS: dict[str, type[ConnectionLocks]] = {
    "postgresql": PostgreSQLNamedLocks,
    "mysql": InnoDBNamedLocks,
    "mariadb": InnoDBNamedLocks,
}

DATABASES: dict[str, type[Database]] = {
    "postgresql": PostgreSQL,
    "mysql": InnoDB,
    "mariadb": InnoDB,
}


def same(lock: NamedLock) -> NamedLock:
    """Make another lock of the same name."""
    return NamedLock(lock.engine, lock.name, lock.timeout)


def is_free(lock: NamedLock) -> bool:
    """Tell whether somebody else could have the lock now."""
    other = same(lock)
    taken = other.acquire(NOW)
    if taken:
        other.release()
    return taken
