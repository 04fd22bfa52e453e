"""Named locks of SQLite are files beside the database."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, StaticPool, create_engine, text

from sa_jobqueue import NamedLock, UnsupportedDatabase, named_lock
from tests.contract.named_locks.conftest import is_free, same
from tests.lockers import NOW
from tests.support import make_engine

pytestmark = pytest.mark.only_on("sqlite")


@pytest.fixture
def lock(fresh_database: URL) -> Iterator[NamedLock]:
    """A free lock of a database of its own."""
    engine = make_engine(fresh_database)
    yield named_lock(engine, "Nightly: report/😀", timeout=NOW)
    engine.dispose()


def lock_files(lock: NamedLock) -> list[Path]:
    database = Path(lock.engine.url.database or "")
    return list(database.parent.glob(f"{database.name}.*.lock"))


def file_of(lock: NamedLock) -> Path:
    """Return the path of the file that the lock has while it is held."""
    with lock:
        (file,) = lock_files(lock)
    return file


def test_the_file_of_a_lock_is_beside_the_database_while_it_is_held(lock: NamedLock) -> None:
    file = file_of(lock)
    assert lock_files(lock) == []
    file.write_text("1\nsome-other-host-with-a-long-name\n")  # left by a process that has died

    assert lock.holder() is None
    with lock:
        assert lock.holder() == same(lock).holder() is not None
        assert file.read_text().split("\n")[0] == str(os.getpid())

    assert ".nightly--report-" in file.name
    assert lock_files(lock) == []


@pytest.mark.parametrize("plant", [os.symlink, os.link, None])
def test_a_planted_link_or_pipe_is_refused_and_its_target_stays_as_it_is(
    lock: NamedLock, plant: Callable[[Path, Path], None] | None
) -> None:
    file = file_of(lock)
    # Beside the database: a hard link cannot lead to another file system.
    precious = file.with_name("precious")
    precious.write_text("precious")
    precious.chmod(0o600)
    if plant is None:
        os.mkfifo(file)
    else:
        plant(precious, file)

    for call in (lock.acquire, lock.holder):
        with pytest.raises(UnsupportedDatabase, match="is no lock file"):
            call()

    assert precious.read_text() == "precious"
    assert precious.stat().st_mode & 0o777 == 0o600
    file.unlink()
    precious.unlink()
    with lock:
        assert lock_files(lock) == [file]


def failing(number: int) -> Callable[..., int]:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_lock_is_not_taken_without_its_file_and_a_full_disk_costs_only_the_holders_name(
    lock: NamedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("open", errno.EACCES), ("pwrite", errno.EIO)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing(number))
            with pytest.raises((UnsupportedDatabase, OSError), match=r"may not open|Input/output"):
                lock.acquire()
        assert is_free(lock)

    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with lock:
        holder = lock.holder()
        assert holder is not None
        assert holder.process is None
    assert is_free(lock)


def test_a_file_that_is_removed_as_it_is_opened_is_no_lock(
    lock: NamedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def removing(number: int, operation: int) -> None:
        if not removed:
            removed.extend(lock_files(lock))
            removed[0].unlink()
        flock(number, operation)

    monkeypatch.setattr(fcntl, "flock", removing)

    with lock:
        assert len(removed) == 1
        assert lock_files(lock) == removed
        assert not is_free(lock)


def test_databases_in_memory_have_locks_of_their_own(db_alias: str) -> None:
    one, other = create_engine("sqlite://"), create_engine("sqlite://")

    with named_lock(one, "report", timeout=NOW) as lock:
        assert not same(lock).acquire()
        assert same(lock).holder() == lock.holder() is not None
        with named_lock(other, "report", timeout=NOW) as elsewhere:
            assert elsewhere.held


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
