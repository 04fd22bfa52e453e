"""A named lock has its own connection, which is closed in the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest
from sqlalchemy import URL, text

from sa_jobqueue import NamedLock, UnsupportedDatabase, named_lock
from tests.contract.named_locks.conftest import is_free, same
from tests.lockers import NOW, PATIENCE
from tests.support import SERVERS, make_engine


@pytest.mark.only_on(*SERVERS)
def test_a_pooler_in_between_is_refused_with_the_way_out(
    lock: NamedLock, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = "postgresql.PostgreSQL" if db_alias == "postgresql" else "innodb.InnoDB"
    monkeypatch.setattr(f"sa_jobqueue.dialects.{database}.told_backend", lambda *_: 4711)

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
