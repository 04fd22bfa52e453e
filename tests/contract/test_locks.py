"""Named locks: one holder at a time, on every engine."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    StaticPool,
    create_engine,
    text,
)
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import (
    ArgumentError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    NamedLock,
    UnsupportedDatabase,
    named_lock,
)
from sa_jobqueue.dialects.capabilities import Database
from sa_jobqueue.dialects.connection_locks import ConnectionLocks
from sa_jobqueue.dialects.innodb.database import InnoDB
from sa_jobqueue.dialects.innodb.named_locks import InnoDBLocks
from sa_jobqueue.dialects.lock_connection import Limits
from sa_jobqueue.dialects.named_locks import Deadline
from sa_jobqueue.dialects.postgresql.database import PostgreSQL
from sa_jobqueue.dialects.postgresql.named_locks import PostgreSQLLocks
from sa_jobqueue.dialects.sqlite import named_locks
from sa_jobqueue.owners.named_lock import lock_holder
from tests.lockers import NOW, PATIENCE, Locker
from tests.proxy import Proxy
from tests.support import make_engine, until

SERVERS = ("postgresql", "mysql", "mariadb")
SHORTLY = timedelta(seconds=0.2)
LOCKS: dict[str, type[ConnectionLocks]] = {
    "postgresql": PostgreSQLLocks,
    "mysql": InnoDBLocks,
    "mariadb": InnoDBLocks,
}
DATABASES: dict[str, type[Database]] = {
    "postgresql": PostgreSQL,
    "mysql": InnoDB,
    "mariadb": InnoDB,
}


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    yield engine
    engine.dispose()


@pytest.fixture
def lock(engine: Engine, request: pytest.FixtureRequest) -> Iterator[NamedLock]:
    """A lock under the test's own name, given back at its end."""
    lock = named_lock(engine, request.node.name, timeout=NOW)
    yield lock
    if lock.held:
        lock.release()


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


@pytest.fixture
def cut(db_alias: str) -> Callable[[NamedLock], None]:
    """End a held lock under its holder, as the database's administrator may."""

    def cut(lock: NamedLock) -> None:
        holder = lock.holder()
        assert holder is not None
        if db_alias == "sqlite":
            database = Path(lock.engine.url.database or "")
            for file in database.parent.glob(f"{database.name}.*.lock"):
                file.unlink()
            return
        kill = "SELECT pg_terminate_backend({})" if db_alias == "postgresql" else "KILL {}"
        with lock.engine.connect() as connection:
            connection.execute(text(kill.format(holder.process)))
        until(lambda: lock.holder() is None)

    return cut


# -- one holder ---------------------------------------------------------


def test_one_process_at_a_time_has_a_lock(lock: NamedLock) -> None:
    with Locker(lock.engine.url, lock.name) as other:
        assert other("acquire", NOW)

        assert not lock.acquire(NOW)

        other("release")
        assert lock.acquire(NOW)
        assert not other("acquire", NOW)


def increment(url: str, name: str, path: str, times: int) -> None:
    """Read a number and write it back, one larger, under a lock."""
    engine = make_engine(url)
    for _ in range(times):
        with named_lock(engine, name):
            number = int(Path(path).read_text())
            time.sleep(0.001)
            Path(path).write_text(str(number + 1))
    engine.dispose()


def test_a_counter_that_is_counted_under_a_lock_misses_nothing(
    lock: NamedLock, tmp_path: Path, full: bool
) -> None:
    processes, times = (8, 250) if full else (4, 25)
    counter = tmp_path / "counter"
    counter.write_text("0")
    url = lock.engine.url.render_as_string(hide_password=False)
    arguments = (url, lock.name, str(counter), times)
    context = multiprocessing.get_context("spawn")

    counting = [context.Process(target=increment, args=arguments) for _ in range(processes)]
    for process in counting:
        process.start()
    for process in counting:
        process.join()

    assert [process.exitcode for process in counting] == [0] * processes
    assert int(counter.read_text()) == processes * times


def test_a_holder_cannot_take_its_lock_again(lock: NamedLock) -> None:
    with lock:
        assert not lock.acquire(NOW)
        assert not same(lock).acquire(SHORTLY)
        with pytest.raises(LockTimeout), lock:
            pass

        assert lock.held
        lock.check()
    assert is_free(lock)


def test_another_thread_cannot_take_a_lock_through_the_same_object(lock: NamedLock) -> None:
    with lock, ThreadPoolExecutor() as pool:
        taken = pool.submit(lock.acquire, SHORTLY).result()

    assert not taken


def test_a_lock_that_was_given_back_can_be_taken_again(lock: NamedLock) -> None:
    for _ in range(3):
        assert lock.acquire(NOW)
        lock.release()

    assert not lock.held
    assert lock.holder() is None


# -- waiting ------------------------------------------------------------


def test_timeout_zero_tries_once(lock: NamedLock) -> None:
    with lock:
        started = time.monotonic()

        assert not same(lock).acquire(NOW)

        assert time.monotonic() - started < 1


def test_a_timeout_is_waited_for_and_not_much_longer(lock: NamedLock) -> None:
    with lock:
        started = time.monotonic()

        assert not same(lock).acquire(timedelta(seconds=1.3))

        assert 1.3 <= time.monotonic() - started < 2.2


def test_the_timeout_of_the_constructor_is_the_default(lock: NamedLock) -> None:
    with lock:
        started = time.monotonic()

        assert not NamedLock(lock.engine, lock.name, SHORTLY).acquire()

        assert 0.2 <= time.monotonic() - started < 1


def test_a_with_block_that_waits_too_long_says_who_has_the_lock(lock: NamedLock) -> None:
    other = named_lock(lock.engine, lock.name, timeout=SHORTLY)

    with lock, pytest.raises(LockTimeout) as caught, other:
        pass

    assert "not had within 0:00:00.200000: process " in str(caught.value)
    assert not other.held


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set whenever somebody begins to wait for a lock."""
    event = threading.Event()
    left = Deadline.left

    def announced(deadline: Deadline, at_most: float) -> float:
        event.set()
        return left(deadline, at_most)

    monkeypatch.setattr(Deadline, "left", announced)
    return event


def handed_over(lock: NamedLock, waiting: threading.Event) -> float:
    """Let one wait without end for the other's lock; return the seconds from its release."""
    second = same(lock)
    assert lock.acquire(NOW)
    waiting.clear()
    with ThreadPoolExecutor() as pool:

        def take() -> float:
            assert second.acquire(None)
            return time.monotonic()

        taking = pool.submit(take)
        assert waiting.wait(PATIENCE.total_seconds())
        released = time.monotonic()
        lock.release()
        taken = taking.result()
    second.release()
    return taken - released


def test_who_waits_without_end_has_the_lock_at_once_when_it_is_free(
    lock: NamedLock, waiting: threading.Event, db_alias: str
) -> None:
    # The best of some: this machine has other things to do, too.
    took = min(handed_over(lock, waiting) for _ in range(5))

    assert took < (0.3 if db_alias == "sqlite" else 0.1)


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


# -- names --------------------------------------------------------------

LONG = "x" * 300
NAMES = (
    "plain",
    "PLAIN",
    "Plain",
    "plain ",
    LONG,
    LONG + "a",
    LONG + "b",
    "it's",
    'a "quoted" `name`',
    "100%",
    "%s %(name)s :name ?",
    "naïve",
    "naive",
    "😀",
    "名前",
    "back\\slash/../..",
    "line\nbreak",
    "nul\0",
    "--",
    "; DROP TABLE email",
)


def test_any_name_is_a_lock_of_its_own(engine: Engine) -> None:
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


@pytest.mark.parametrize("name", ["", None, 7, b"bytes"])
def test_what_is_no_name_is_refused(engine: Engine, name: Any) -> None:
    with pytest.raises(ArgumentError, match="name of a lock is a text"):
        named_lock(engine, name)


@pytest.mark.parametrize("timeout", [timedelta(seconds=-1), 10, 0, 1.5, True, "10"])
def test_what_is_no_timeout_is_refused(lock: NamedLock, timeout: Any) -> None:
    with pytest.raises(ArgumentError, match="timedelta that is not negative"):
        named_lock(lock.engine, lock.name, timeout=timeout)
    with pytest.raises(ArgumentError, match="timedelta that is not negative"):
        lock.acquire(timeout)


def test_what_is_no_engine_is_refused(engine: Engine) -> None:
    with (
        engine.connect() as connection,
        pytest.raises(ArgumentError, match="needs an Engine"),
    ):
        named_lock(connection, "a")  # type: ignore[arg-type]  # that is the test


# -- who has it ---------------------------------------------------------


def test_the_holder_of_a_free_lock_is_nobody(lock: NamedLock) -> None:
    assert lock.holder() is None

    lock.acquire()
    lock.release()

    assert lock.holder() is None


def test_the_holder_is_seen_from_any_connection_of_the_database(lock: NamedLock) -> None:
    with lock, lock.engine.connect() as connection:
        seen = lock_holder(connection, lock.name)

        assert seen is not None
        assert seen == lock.holder() == same(lock).holder()
        assert str(seen).startswith(f"process {seen.process} ")

    with lock.engine.connect() as connection:
        assert lock_holder(connection, lock.name) is None


def test_the_holder_is_the_process_that_took_the_lock(lock: NamedLock, db_alias: str) -> None:
    with Locker(lock.engine.url, lock.name) as other:
        other("acquire", NOW)

        holder = lock.holder()

        assert holder is not None
        assert holder == other("holder")
        if db_alias == "sqlite":
            assert holder.process == other.process.pid


def test_to_look_who_has_a_lock_keeps_nobody_from_taking_it(lock: NamedLock, db_alias: str) -> None:
    times = 200 if db_alias == "sqlite" else 5
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            lock.holder()

    with ThreadPoolExecutor() as pool:
        looking = [pool.submit(look) for _ in range(2)]
        try:
            taken = [is_free(lock) for _ in range(times)]
        finally:
            over.set()
        for each in looking:
            each.result()

    assert all(taken)


def test_to_give_back_or_check_what_is_not_held_says_that_nobody_has_it(lock: NamedLock) -> None:
    for call in (lock.release, lock.check):
        with pytest.raises(LockNotHeld) as caught:
            call()

        assert str(caught.value) == f"The lock {lock.name!r} is not held here: nobody holds it."


def test_to_give_back_or_check_anothers_lock_says_whose_it_is(lock: NamedLock) -> None:
    other = same(lock)
    other.acquire()
    holder = other.holder()

    for call in (lock.release, lock.check):
        with pytest.raises(LockNotHeld) as caught:
            call()

        assert str(caught.value) == f"The lock {lock.name!r} is not held here: {holder} has it."
    other.check()
    other.release()


def test_a_lock_is_given_back_once(lock: NamedLock) -> None:
    lock.acquire()
    lock.release()

    with pytest.raises(LockNotHeld):
        lock.release()


# -- loss ---------------------------------------------------------------


def test_a_loss_is_noticed_by_a_check(lock: NamedLock, cut: Callable[[NamedLock], None]) -> None:
    lock.acquire()
    lock.check()
    cut(lock)

    with pytest.raises(LockLost, match="was lost"):
        lock.check()

    assert lock.lost
    assert not lock.held


def test_a_loss_is_noticed_by_the_release(
    lock: NamedLock, cut: Callable[[NamedLock], None]
) -> None:
    lock.acquire()
    cut(lock)

    with pytest.raises(LockLost, match="was lost"):
        lock.release()

    assert not lock.held
    assert not lock.lost
    with pytest.raises(LockNotHeld):
        lock.release()


def test_a_loss_is_noticed_without_a_question(
    lock: NamedLock, cut: Callable[[NamedLock], None]
) -> None:
    lock.acquire()
    assert not lock.lost
    cut(lock)

    until(lambda: lock.lost)

    with pytest.raises(LockLost):
        lock.check()


def test_a_loss_is_told_at_the_end_of_the_with_block(
    lock: NamedLock, cut: Callable[[NamedLock], None]
) -> None:
    with pytest.raises(LockLost), lock:
        cut(lock)


def test_a_loss_hides_no_other_error(lock: NamedLock, cut: Callable[[NamedLock], None]) -> None:
    def fail() -> None:
        cut(lock)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lock:
        fail()


def test_a_lost_lock_can_be_taken_again(lock: NamedLock, cut: Callable[[NamedLock], None]) -> None:
    lock.acquire()
    cut(lock)
    until(lambda: lock.lost)

    assert lock.acquire(PATIENCE)

    lock.check()
    assert lock.held
    assert not lock.lost


def test_a_lost_lock_is_anothers_to_have(lock: NamedLock, cut: Callable[[NamedLock], None]) -> None:
    lock.acquire()
    cut(lock)

    with same(lock) as other:
        with pytest.raises(LockLost):
            lock.release()
        other.check()


@pytest.mark.only_on(*SERVERS)
def test_a_lock_that_the_server_has_forgotten_is_a_loss(lock: NamedLock, db_alias: str) -> None:
    # As a pooler's DISCARD ALL would have it.
    forget = "pg_advisory_unlock_all()" if db_alias == "postgresql" else "RELEASE_LOCK(:key)"
    for call in (lock.check, lock.release):
        lock.acquire(PATIENCE)
        held: Any = lock._lock
        forgetting = partial(Connection.execute, statement=text(f"SELECT {forget}"))
        held._connection.ask(partial(forgetting, parameters={"key": held._key}))

        with pytest.raises(LockLost):
            call()


@pytest.mark.only_on(*SERVERS)
def test_a_loss_is_logged_with_the_locks_name(
    lock: NamedLock, cut: Callable[[NamedLock], None], caplog: pytest.LogCaptureFixture
) -> None:
    lock.acquire()
    cut(lock)

    until(lambda: bool(caplog.records))

    assert repr(lock.name) in caplog.messages[0]
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.only_on(*SERVERS)
def test_another_server_process_than_before_is_a_loss(
    lock: NamedLock, db_alias: str, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    works_for_us = [1]
    monkeypatch.setattr(DATABASES[db_alias], "told_backend", lambda *_: None)
    monkeypatch.setattr(DATABASES[db_alias], "backend", lambda *_: works_for_us[0])
    lock.acquire()
    assert lock.held

    works_for_us[0] = 2

    until(lambda: lock.lost)


# -- silence ------------------------------------------------------------


@pytest.fixture
def limits(db_alias: str, monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Limits that a test can wait for; servers count in seconds."""
    short = Limits(
        silence=timedelta(seconds=3),
        pulse=timedelta(seconds=0.5),
        answer=timedelta(seconds=5),
    )
    monkeypatch.setattr(LOCKS[db_alias], "limits", short)
    return short


@pytest.fixture
def proxy(db_url: URL) -> Iterator[Proxy]:
    with Proxy(db_url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, lock: NamedLock) -> Iterator[NamedLock]:
    """The same lock, through a network that can be cut."""
    engine = make_engine(proxy.url, poolclass=NullPool)
    yield named_lock(engine, lock.name, timeout=NOW)
    engine.dispose()


@pytest.mark.only_on(*SERVERS)
def test_a_held_lock_is_kept_alive_and_a_silent_one_is_free_after_the_limit(
    lock: NamedLock, far: NamedLock, proxy: Proxy, limits: Limits
) -> None:
    far.acquire()

    assert not lock.acquire(2 * limits.silence)
    far.check()
    proxy.go_silent()
    assert not lock.acquire(NOW)

    assert lock.acquire(limits.silence + timedelta(seconds=2))
    assert far.lost


@pytest.mark.only_on(*SERVERS)
def test_a_holder_that_hears_nothing_gives_up_before_the_server_does(
    lock: NamedLock, far: NamedLock, proxy: Proxy, limits: Limits
) -> None:
    far.acquire()
    proxy.go_silent()

    until(lambda: far.lost)

    started = time.monotonic()
    with pytest.raises(LockLost):
        far.check()
    with pytest.raises(LockLost):
        far.release()
    assert time.monotonic() - started < 1


@pytest.mark.only_on(*SERVERS)
def test_a_question_to_a_silent_server_ends(far: NamedLock, proxy: Proxy, limits: Limits) -> None:
    far.acquire()
    proxy.go_silent()
    started = time.monotonic()

    with pytest.raises(LockLost):
        far.check()

    assert time.monotonic() - started < 15


@pytest.mark.only_full
@pytest.mark.only_on("postgresql")
@pytest.mark.timeout(400)
def test_a_silent_holder_is_dead_within_two_minutes(
    lock: NamedLock, far: NamedLock, proxy: Proxy
) -> None:
    far.acquire()
    proxy.go_silent()
    started = time.monotonic()

    assert lock.acquire(None)

    assert time.monotonic() - started < 120


@pytest.mark.only_on(*SERVERS)
def test_the_servers_limits_are_as_promised(db_alias: str) -> None:
    limit = timedelta(minutes=2 if db_alias == "postgresql" else 10)

    limits = LOCKS[db_alias].limits

    assert limits.silence + limits.pulse <= limit


# -- connections --------------------------------------------------------


@pytest.mark.only_on(*SERVERS)
def test_a_pooler_in_between_is_refused_with_the_way_out(
    lock: NamedLock, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATABASES[db_alias], "told_backend", lambda *_: 4711)

    with pytest.raises(UnsupportedDatabase, match=r"pooler.*names the server itself"):
        lock.acquire()


@pytest.mark.only_on(*SERVERS)
def test_the_driver_was_told_the_server_process_that_works_for_it(
    engine: Engine, db_alias: str
) -> None:
    with engine.connect() as connection:
        database = DATABASES[db_alias]((99,))

        assert database.told_backend(connection) == database.backend(connection)
        assert not database.through_pooler(connection)


def test_a_held_lock_takes_no_connection_of_the_pool(lock: NamedLock, db_url: URL) -> None:
    engine = make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=1)
    mine = named_lock(engine, lock.name, timeout=NOW)

    with engine.connect() as connection, mine:
        assert connection.scalar(text("SELECT 1")) == 1
        assert mine.holder() == lock.holder() is not None
        assert not mine.acquire()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1

    engine.dispose()


def test_disposing_of_the_engine_frees_no_lock(lock: NamedLock) -> None:
    with lock:
        lock.engine.dispose()

        lock.check()
        assert not is_free(lock)


def test_a_lock_that_is_dropped_is_free(lock: NamedLock) -> None:
    dropped = same(lock)
    dropped.acquire()

    del dropped
    gc.collect()

    assert lock.acquire(PATIENCE)


def test_no_thread_and_no_connection_is_left_behind(lock: NamedLock) -> None:
    before = threading.active_count(), open_files()

    for _ in range(5):
        with lock:
            same(lock).acquire(NOW)
            lock.holder()

    assert (threading.active_count(), open_files()) == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0


SCRIPT = """
import sys
from sqlalchemy import create_engine
from sa_jobqueue import named_lock
engine = create_engine(sys.argv[1])
lock = named_lock(engine, sys.argv[2])
lock.acquire()
keep = [lock]
keep.append(keep)
print("held" if lock.held else "not held")
"""


def test_a_process_may_end_with_a_lock_in_its_hand(lock: NamedLock) -> None:
    url = lock.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", SCRIPT, url, lock.name]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("held\n", "", 0)
    assert lock.acquire(PATIENCE)


def test_an_error_of_the_engine_comes_out_as_it_is(db_url: URL, db_alias: str) -> None:
    nowhere = "/nowhere/at/all.db" if db_alias == "sqlite" else "there_is_no_such_database"
    engine = make_engine(db_url.set(database=nowhere))

    with pytest.raises((DBAPIError, FileNotFoundError)):
        named_lock(engine, "a").acquire(NOW)

    engine.dispose()


def test_an_async_engine_is_refused_with_the_way_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.dialect, "is_async", True)

    with pytest.raises(UnsupportedDatabase, match="synchronous driver"):
        named_lock(engine, "a")


# -- keys ---------------------------------------------------------------


@pytest.mark.only_on("mysql", "mariadb")
def test_the_servers_name_of_a_lock_is_readable_and_not_too_long(engine: Engine) -> None:
    database = InnoDB((99,))
    with engine.connect() as connection:
        locks = InnoDBLocks(database, statement_limit="")
        keys = [str(locks.key(connection, name)) for name in NAMES]

    assert all(len(key) <= 64 and key.isascii() for key in keys)
    assert len({key.lower() for key in keys}) == len(NAMES)
    assert keys[0].startswith("plain:")


# -- files --------------------------------------------------------------


def lock_files(url: URL) -> list[Path]:
    return list(Path(url.database or "").parent.glob(f"{Path(url.database or '').name}.*.lock"))


@pytest.mark.only_on("sqlite")
def test_the_file_of_a_lock_is_beside_the_database_while_it_is_held(
    fresh_database: URL,
) -> None:
    engine = make_engine(fresh_database)

    with named_lock(engine, "Nightly: report/😀"):
        (file,) = lock_files(fresh_database)

        assert ".nightly--report-" in file.name
        assert file.read_text().split("\n")[0] == str(os.getpid())
    assert lock_files(fresh_database) == []

    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_file_left_by_a_dead_process_is_taken_over(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)
    with lock:
        (file,) = lock_files(fresh_database)
    file.write_text("1\nsome-other-host-with-a-long-name\n")

    assert lock.holder() is None
    with lock:
        assert lock.holder() == same(lock).holder() is not None
        assert file.read_text().split("\n")[0] == str(os.getpid())

    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_file_that_is_removed_as_it_is_opened_is_no_lock(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)
    locked = named_locks._locked
    removed: list[Path] = []

    def removing(number: int, *, exclusively: bool) -> bool:
        if not removed:
            removed.extend(lock_files(fresh_database))
            removed[0].unlink()
        return locked(number, exclusively=exclusively)

    monkeypatch.setattr(named_locks, "_locked", removing)

    with lock:
        assert len(removed) == 1
        assert lock_files(fresh_database) == removed
        assert not is_free(lock)
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_databases_in_memory_have_locks_of_their_own(engine: Engine) -> None:
    one, other = create_engine("sqlite://"), create_engine("sqlite://")

    with named_lock(one, "report", timeout=NOW) as lock:
        assert not same(lock).acquire()
        with named_lock(other, "report", timeout=NOW) as elsewhere:
            assert elsewhere.held
        with one.connect() as connection:
            assert lock_holder(connection, "report") == lock.holder() is not None

    one.dispose()
    other.dispose()


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("pool", [{}, {"poolclass": StaticPool}], ids=["thread", "static"])
def test_a_lock_leaves_the_transaction_of_a_shared_connection_alone(
    db_alias: str, pool: dict[str, Any]
) -> None:
    engine = create_engine("sqlite://", **pool)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE t (a INT)"))
        connection.commit()
        connection.execute(text("INSERT INTO t VALUES (1)"))

        with named_lock(engine, "report") as lock:
            lock.holder()
            lock.check()

        connection.commit()
        assert connection.scalar(text("SELECT count(*) FROM t")) == 1
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_creators_database_is_found_though_the_url_does_not_name_it(db_url: URL) -> None:
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(db_url.database or ""))
    direct = make_engine(db_url)

    with named_lock(direct, "report"):
        assert not named_lock(engine, "report").acquire(NOW)

    engine.dispose()
    direct.dispose()


@pytest.mark.only_on("sqlite")
def test_a_platform_without_file_locks_is_refused_with_the_way_out(
    lock: NamedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_locks, "fcntl", None)

    with pytest.raises(UnsupportedDatabase, match=r"flock.*Linux or macOS"):
        lock.acquire()


# -- databases of one's own ---------------------------------------------


def test_a_database_without_named_locks_is_refused_with_the_way_out() -> None:
    class Tortoise(Database):
        title = "Tortoise"
        minimum = (1,)

    with pytest.raises(UnsupportedDatabase, match=r"no named locks of Tortoise.*named_locks\(\)"):
        Tortoise(None).named_locks()
