"""A named lock has one holder at a time: who it is, how long others wait, and what a name is."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text

from sa_jobqueue import (
    ArgumentError,
    LockNotHeld,
    LockTimeout,
    NamedLock,
    UnsupportedDatabase,
    named_lock,
)

# Inner: workers of many schemas share connections.
from sa_jobqueue.databases.connections import SharedConnections

# Inner: docs/reference/workers.md offers this function.
from sa_jobqueue.owners.named_lock import lock_holder
from tests.contract.named_locks.conftest import is_free, same
from tests.lockers import NOW, PATIENCE, Locker
from tests.support import SERVERS, make_engine

SHORTLY = timedelta(seconds=0.2)


# -- one holder ---------------------------------------------------------


def test_one_process_at_a_time_has_a_lock(lock: NamedLock) -> None:
    with Locker(lock.engine.url, lock.name) as other:
        assert other("acquire", NOW)

        assert not lock.acquire(NOW)

        other("release")
        assert lock.acquire(NOW)
        assert not other("acquire", NOW)


def test_a_holder_cannot_take_its_lock_again(lock: NamedLock) -> None:
    with lock, ThreadPoolExecutor() as pool:
        assert not lock.acquire(NOW)
        assert not same(lock).acquire(SHORTLY)
        assert not pool.submit(lock.acquire, SHORTLY).result()  # by another thread
        with pytest.raises(LockTimeout), lock:
            pass

        assert lock.held
        lock.check()
    assert is_free(lock)


# -- who has it ---------------------------------------------------------


def test_the_holder_is_seen_from_any_connection_of_the_database(lock: NamedLock) -> None:
    with lock, lock.engine.connect() as connection:
        seen = lock_holder(connection, lock.name)

        assert seen is not None
        assert seen == lock.holder() == same(lock).holder()
        assert str(seen).startswith(f"process {seen.process} ")

    with lock.engine.connect() as connection:
        assert lock_holder(connection, lock.name) is None


def assert_not_held_here(lock: NamedLock, who: str) -> None:
    for call in (lock.release, lock.check):
        with pytest.raises(LockNotHeld) as caught:
            call()
        assert str(caught.value) == f"The lock {lock.name!r} is not held here: {who}."


def test_releasing_or_checking_a_lock_that_is_not_held_here_names_its_holder(
    lock: NamedLock,
) -> None:
    other = same(lock)
    for _ in range(2):  # a lock that was given back can be taken again
        assert_not_held_here(lock, "nobody holds it")
        with other:
            assert_not_held_here(lock, f"{other.holder()} has it")
            other.check()
    assert not other.held


#: So long a busy machine may pause, in seconds. Who ignores a timeout waits for longer.
MUCH = PATIENCE.total_seconds() / 4


@pytest.mark.parametrize(("own", "given"), [(60, 0), (60, 1.3), (0.2, None)])
def test_acquire_waits_for_its_timeout_or_that_of_the_lock_and_not_much_longer(
    lock: NamedLock, own: float, given: float | None
) -> None:
    other = named_lock(lock.engine, lock.name, timeout=timedelta(seconds=own))
    with lock:
        started = time.monotonic()

        assert not (other.acquire() if given is None else other.acquire(timedelta(seconds=given)))

        waited = time.monotonic() - started
        expected = own if given is None else given
        assert expected <= waited < expected + MUCH


def test_the_timeout_of_a_with_block_names_the_holder_of_the_lock(lock: NamedLock) -> None:
    other = named_lock(lock.engine, lock.name, timeout=SHORTLY)

    with lock, pytest.raises(LockTimeout) as caught, other:
        pass

    assert "not free within 0.2 s: process " in str(caught.value)
    assert not other.held


def test_a_wait_longer_than_the_servers_and_drivers_own_limits(
    lock: NamedLock, db_url: URL, db_alias: str
) -> None:
    limits: dict[str, dict[str, Any]] = {
        "sqlite": {},
        "postgresql": {"options": "-c statement_timeout=500 -c lock_timeout=500"},
        "mysql": {"read_timeout": 2, "init_command": "SET max_execution_time = 500"},
        "mariadb": {"read_timeout": 2, "init_command": "SET max_statement_time = 0.5"},
    }
    engine = create_engine(db_url, connect_args=limits[db_alias])

    with lock:
        taken = named_lock(engine, lock.name).acquire(timedelta(seconds=3))

    assert not taken
    engine.dispose()


LONG = "x" * 300

NAMES = (
    "plain",
    "PLAIN",
    "plain ",
    LONG,
    LONG + "a",
    'it\'s `a` "name"',
    "%s %(name)s :name ?",
    "naïve",
    "naive",
    "😀",
    "back\\slash/../..",
    "line\nbreak\0",
    "; DROP TABLE email",
)


def test_every_name_is_a_lock_of_its_own(engine: Engine) -> None:
    locks = [named_lock(engine, name, timeout=NOW) for name in NAMES]

    taken = [lock.acquire() for lock in locks]

    again = [named_lock(engine, name).acquire(NOW) for name in NAMES]
    holders = [lock.holder() is not None for lock in locks]
    for lock in locks:
        lock.release()
    assert all(taken)
    assert not any(again)
    assert all(holders)
    assert [lock.holder() for lock in locks] == [None] * len(NAMES)


def test_a_lock_does_not_keep_others_from_the_same_name_in_another_database(
    lock: NamedLock, fresh_database: URL
) -> None:
    elsewhere = make_engine(fresh_database)

    with lock, named_lock(elsewhere, lock.name, timeout=NOW) as other:
        assert other.held
        assert lock.held
        lock.check()

    elsewhere.dispose()


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"name": name}, "name of a lock is a text") for name in ("", None, 7, b"bytes")),
        *(
            ({"timeout": timeout}, "timedelta that is not negative")
            for timeout in (timedelta(seconds=-1), 10, 0, 1.5, True, "10")
        ),
        ({"engine": "sqlite://"}, "needs an Engine"),
    ],
)
def test_what_makes_no_lock_is_refused(lock: NamedLock, options: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        named_lock(**{"engine": lock.engine, "name": lock.name, **options})
    if "timeout" in options:
        with pytest.raises(ArgumentError, match=words):
            lock.acquire(**options)


@pytest.mark.only_on(*SERVERS)
def test_a_pooler_in_between_is_refused_with_the_way_out(
    lock: NamedLock, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inner: no pooler stands between this test and its server.
    database = "postgresql.PostgreSQL" if db_alias == "postgresql" else "innodb.InnoDB"
    monkeypatch.setattr(f"sa_jobqueue.databases.{database}.told_backend", lambda *_: 4711)

    with pytest.raises(UnsupportedDatabase, match=r"pooler.*names the server itself"):
        lock.acquire()


def test_a_held_lock_takes_no_connection_of_the_pool(lock: NamedLock, db_url: URL) -> None:
    engine = make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=1)
    mine = named_lock(engine, lock.name, timeout=NOW)

    with engine.connect() as connection, mine:
        assert connection.scalar(text("SELECT 1")) == 1
        assert mine.holder() == lock.holder() is not None
        assert not mine.acquire()
        engine.dispose()
        mine.check()
        assert not is_free(lock)


def test_a_lock_that_is_dropped_is_free(lock: NamedLock) -> None:
    dropped = same(lock)
    dropped.acquire()

    del dropped
    gc.collect()

    assert lock.acquire(PATIENCE)


@pytest.mark.only_on(*SERVERS)
def test_a_lock_that_is_dropped_takes_along_those_that_share_its_connection(
    lock: NamedLock,
) -> None:
    dropped = NamedLock(lock.engine, f"{lock.name}, dropped", NOW)
    lock.shared = dropped.shared = SharedConnections()
    lock.acquire()
    dropped.acquire()

    del dropped
    gc.collect()

    assert lock.lost


def test_no_thread_and_no_connection_is_left_behind(lock: NamedLock) -> None:
    threads, files = threading.active_count(), open_files()

    for _ in range(5):
        with lock:
            same(lock).acquire(NOW)
            lock.holder()

    # Threads of other tests may have ended meanwhile.
    assert threading.active_count() <= threads
    assert open_files() <= files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
