"""A named lock has one holder at a time, and tells who it is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from sa_jobqueue import LockNotHeld, LockTimeout, NamedLock, named_lock
from sa_jobqueue.owners.named_lock import lock_holder
from tests.contract.named_locks.support import is_free, same
from tests.lockers import NOW, Locker
from tests.processes import FORKSERVER
from tests.support import make_engine

SHORTLY = timedelta(seconds=0.2)


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

    counting = [FORKSERVER.Process(target=increment, args=arguments) for _ in range(processes)]
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


def test_asking_who_has_a_lock_keeps_nobody_from_taking_it(lock: NamedLock, db_alias: str) -> None:
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


def test_releasing_or_checking_a_free_lock_tells_that_nobody_has_it(lock: NamedLock) -> None:
    for call in (lock.release, lock.check):
        with pytest.raises(LockNotHeld) as caught:
            call()

        assert str(caught.value) == f"The lock {lock.name!r} is not held here: nobody holds it."


def test_releasing_or_checking_anothers_lock_names_its_holder(lock: NamedLock) -> None:
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
