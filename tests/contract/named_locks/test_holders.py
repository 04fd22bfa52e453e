"""A named lock has one holder at a time, and tells who it is."""

from __future__ import annotations

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


def test_releasing_or_checking_a_lock_that_is_not_held_here_names_its_holder(
    lock: NamedLock,
) -> None:
    other = same(lock)
    for _ in range(2):  # a lock that was given back can be taken again
        for holder in (None, "other"):
            if holder:
                other.acquire()
            who = f"{other.holder()} has it" if holder else "nobody holds it"
            for call in (lock.release, lock.check):
                with pytest.raises(LockNotHeld) as caught:
                    call()

                assert str(caught.value) == f"The lock {lock.name!r} is not held here: {who}."
        other.check()
        other.release()
    assert not other.held
