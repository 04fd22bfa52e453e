"""Named locks of SQLite are files beside the database."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, StaticPool, create_engine, text

from sa_jobqueue import NamedLock, UnsupportedDatabase, named_lock
from sa_jobqueue.dialects.sqlite import named_locks
from sa_jobqueue.owners.named_lock import lock_holder
from tests.contract.named_locks.support import is_free, same
from tests.lockers import NOW
from tests.support import make_engine


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


@pytest.mark.parametrize("plant", [os.symlink, os.link])
@pytest.mark.only_on("sqlite")
def test_a_planted_link_is_refused_and_its_target_stays_as_it_is(
    fresh_database: URL, plant: Callable[[Path, Path], None]
) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)
    with lock:
        (file,) = lock_files(fresh_database)
    # Beside the database: a hard link cannot lead to another file system.
    precious = file.with_name(f"{Path(fresh_database.database or '').stem}.precious")
    precious.write_text("precious")
    precious.chmod(0o600)
    plant(precious, file)

    with pytest.raises(UnsupportedDatabase, match="is no lock file"):
        lock.acquire()
    with pytest.raises(UnsupportedDatabase, match="is no lock file"):
        lock.holder()

    assert precious.read_text() == "precious"
    assert precious.stat().st_mode & 0o777 == 0o600
    file.unlink()
    precious.unlink()
    with lock:
        assert lock_files(fresh_database) == [file]
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_link_to_a_file_that_does_not_exist_makes_none(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)
    with lock:
        (file,) = lock_files(fresh_database)
    made = file.with_suffix(".made")
    file.symlink_to(made)

    with pytest.raises(UnsupportedDatabase, match="is no lock file"):
        lock.acquire()

    assert not made.exists()
    file.unlink()
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_planted_pipe_is_refused_and_nobody_waits_for_its_writer(fresh_database: URL) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)
    with lock:
        (file,) = lock_files(fresh_database)
    os.mkfifo(file)

    for call in (lock.acquire, lock.holder):
        with pytest.raises(UnsupportedDatabase, match="is no lock file"):
            call()

    file.unlink()
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_file_that_this_user_may_not_open_is_refused_with_the_way_out(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(fresh_database)
    lock = named_lock(engine, "report", timeout=NOW)

    def refuse(*args: Any) -> int:  # root may open every file
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(UnsupportedDatabase, match="may not open the lock file"):
        lock.acquire()
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
def test_the_file_that_a_creator_opens_is_found_though_the_url_does_not_name_it(
    db_url: URL,
) -> None:
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


@pytest.mark.only_on("sqlite")
def test_a_full_disk_costs_the_holders_name_and_not_the_lock(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(fresh_database)

    def no_room(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)
    lock = named_lock(engine, "report", timeout=NOW)
    with lock:
        holder = lock.holder()

        assert holder is not None
        assert holder.process is None
    assert is_free(named_lock(engine, "report"))
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_lock_whose_file_cannot_be_written_is_given_back(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(fresh_database)

    def broken(*args: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", broken)
        with pytest.raises(OSError, match="Input/output"):
            named_lock(engine, "report", timeout=NOW).acquire()

    assert is_free(named_lock(engine, "report"))
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_a_lock_without_its_file_is_lost_at_once_and_sure_for_a_moment_only(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = "sa_jobqueue.dialects.sqlite.named_locks._SURE_FOR"
    lock = named_lock(make_engine(fresh_database), "report", timeout=NOW)
    assert lock.acquire()
    (file,) = lock_files(fresh_database)
    before = lock.lost
    file.unlink()

    monkeypatch.setattr(moment, 60.0)
    within = (lock.sure, lock.lost)
    monkeypatch.setattr(moment, 0.0)

    assert (before, within, lock.sure) == (False, (True, True), False)
