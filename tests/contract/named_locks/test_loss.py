"""A holder notices that its lock is lost, and a silent holder loses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, NullPool, text

from sa_jobqueue import LockLost, LockNotHeld, NamedLock, named_lock
from sa_jobqueue.dialects.watched_connection import Limits, WatchedConnection
from tests.contract.named_locks.support import DATABASES, LOCKS, same
from tests.lockers import NOW, PATIENCE
from tests.proxy import Proxy
from tests.support import SERVERS, make_engine, until


@pytest.fixture
def cut(db_alias: str) -> Callable[[NamedLock], None]:
    """Take a held lock away from its holder, as an administrator may."""

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


def test_a_loss_is_noticed_without_asking_the_server(
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


def test_another_process_may_take_a_lost_lock(
    lock: NamedLock, cut: Callable[[NamedLock], None]
) -> None:
    lock.acquire()
    cut(lock)

    with same(lock) as other:
        with pytest.raises(LockLost):
            lock.release()
        other.check()


@pytest.mark.only_on(*SERVERS)
def test_a_lock_that_the_server_has_forgotten_is_a_loss(lock: NamedLock, db_alias: str) -> None:
    # A pooler's DISCARD ALL does the same.
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
def test_a_changed_server_process_is_a_loss(
    lock: NamedLock, db_alias: str, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    works_for_us = [1]
    monkeypatch.setattr(DATABASES[db_alias], "told_backend", lambda *_: None)
    monkeypatch.setattr(DATABASES[db_alias], "backend", lambda *_: works_for_us[0])
    lock.acquire()
    assert lock.held

    works_for_us[0] = 2

    until(lambda: lock.lost)


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


# -- silence ------------------------------------------------------------


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
def test_a_holder_that_hears_nothing_from_the_server_loses_its_lock_before_the_server_frees_it(
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
    assert time.monotonic() - started < 4  # an answer is waited for longer


@pytest.mark.only_on(*SERVERS)
def test_a_question_to_a_silent_server_ends(far: NamedLock, proxy: Proxy, limits: Limits) -> None:
    far.acquire()
    proxy.go_silent()
    started = time.monotonic()

    with pytest.raises(LockLost):
        far.check()

    assert time.monotonic() - started < 15


@pytest.mark.only_on(*SERVERS)
def test_a_holder_whose_question_is_not_answered_takes_its_lock_for_lost(
    far: NamedLock, proxy: Proxy, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may know sooner than after the limit of silence that the network was cut."""
    limits = Limits(
        silence=timedelta(minutes=9),
        pulse=timedelta(seconds=0.2),
        answer=timedelta(seconds=0.5),
    )
    monkeypatch.setattr(LOCKS[db_alias], "limits", limits)
    far.acquire()
    proxy.go_silent()

    until(lambda: far.lost, 5)


@pytest.fixture
def frozen(db_alias: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let no other Python thread run until the event is set, as under a GIL that is kept."""
    limits = Limits(
        silence=timedelta(minutes=9),
        pulse=timedelta(seconds=0.3),
        answer=timedelta(seconds=0.7),
        doubt=timedelta(seconds=0.5),
    )
    monkeypatch.setattr(LOCKS[db_alias], "limits", limits)
    thawed = threading.Event()
    wait = WatchedConnection.wait
    monkeypatch.setattr(WatchedConnection, "wait", lambda self: thawed.wait(30) and wait(self))
    yield thawed
    thawed.set()


@pytest.mark.only_on(*SERVERS)
def test_a_holder_that_could_not_ask_for_long_asks_before_it_counts_on_its_lock(
    far: NamedLock, proxy: Proxy, frozen: threading.Event
) -> None:
    far.acquire()
    threading.Event().wait(0.6)
    assert not far.lost
    proxy.go_silent()
    threading.Event().wait(0.6)

    frozen.set()

    assert far.lost


@pytest.mark.only_on("postgresql")
def test_the_server_probes_the_hosts_of_holders(lock: NamedLock) -> None:
    """Read back from the server's socket, so its operating system has taken the settings."""
    asked = text(
        "SELECT CAST(current_setting('tcp_keepalives_idle') AS int)"
        " + CAST(current_setting('tcp_keepalives_interval') AS int)"
        " * CAST(current_setting('tcp_keepalives_count') AS int),"
        " CAST(current_setting('idle_session_timeout') AS interval)"
    )
    lock.acquire()

    held: Any = lock._lock
    probed, silence = held._connection.ask(lambda connection: connection.execute(asked).one())

    limits = LOCKS["postgresql"].limits
    assert limits.doubt + limits.pulse < timedelta(seconds=probed) < timedelta(minutes=2)
    assert silence == limits.silence


@pytest.mark.only_on(*SERVERS)
def test_the_servers_limits_are_as_promised(db_alias: str) -> None:
    limits = LOCKS[db_alias].limits

    assert limits.silence + limits.pulse <= timedelta(minutes=10)
    assert limits.silence >= timedelta(minutes=9)  # for so long a process may keep the GIL
