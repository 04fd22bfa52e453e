"""A lock lives no longer than its holder's process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import NamedLock
from tests.lockers import NOW, Locker

#: The time in which the operating system and the server notice that a process is gone.
AT_ONCE = timedelta(seconds=2)


@pytest.fixture
def other(lock: NamedLock) -> Iterator[Locker]:
    """Another process that holds the lock."""
    with Locker(lock.engine.url, lock.name) as other:
        assert other("acquire", NOW)
        yield other


def test_a_waiter_gets_the_lock_of_a_killed_holder(lock: NamedLock, other: Locker) -> None:
    with Locker(lock.engine.url, lock.name) as waiter:
        assert not lock.acquire(NOW)
        waiter.begin_to_wait()

        other.kill()

        assert waiter.answer() is True
        waiter.kill()
        assert lock.acquire(AT_ONCE)


def test_a_waiter_is_interrupted_by_ctrl_c(lock: NamedLock, other: Locker) -> None:
    with Locker(lock.engine.url, lock.name) as waiter:
        waiter.begin_to_wait()
        while not asked_to_wait(lock.engine):
            time.sleep(0.01)
        started = time.monotonic()

        waiter.signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            waiter.answer()

        assert time.monotonic() - started < 5
        other("release")
        assert lock.acquire(AT_ONCE)


#: Queries that find a waiter for a lock on the server; SQLite's files have no such list.
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    "mysql": "SELECT count(*) FROM information_schema.PROCESSLIST"
    " WHERE state = 'User lock' AND db = DATABASE()",
}
WAITING["mariadb"] = WAITING["mysql"]


def asked_to_wait(engine: Engine) -> bool:
    """Tell whether a server has been asked to wait for a lock of this database."""
    query = WAITING.get(engine.url.get_backend_name())
    with engine.connect() as connection:
        return query is None or bool(connection.scalar(text(query)))
