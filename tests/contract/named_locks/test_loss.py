"""A holder notices that its lock is lost, and a silent holder loses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, NullPool, text

from sa_jobqueue import LockLost, NamedLock, named_lock

# Inner: a thread that does not get the GIL cannot be made at a public door.
from sa_jobqueue.databases import Limits
from sa_jobqueue.databases.watched_connection import WatchedConnection
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


@pytest.mark.parametrize("notice", [NamedLock.check, NamedLock.release], ids=["check", "release"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_loss_is_noticed_and_the_lock_can_be_taken_again(
    lock: NamedLock,
    cut: Callable[[NamedLock], None],
    notice: Callable[[NamedLock], None],
    waits: bool,
    db_alias: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock.acquire()
    lock.check()
    assert not lock.lost
    cut(lock)
    if waits:  # the holder is told without asking the server
        until(lambda: lock.lost)
    if waits and db_alias != "sqlite":
        until(lambda: repr(lock.name) in caplog.text)
        assert caplog.records[0].levelname == "WARNING"

    with pytest.raises(LockLost, match="was lost"):
        notice(lock)

    assert not lock.held
    assert lock.lost is (notice is NamedLock.check)
    assert lock.acquire(PATIENCE)
    lock.check()
    assert (lock.held, lock.lost) == (True, False)


def test_a_loss_is_told_at_the_end_of_the_with_block_and_hides_no_other_error(
    lock: NamedLock, cut: Callable[[NamedLock], None]
) -> None:
    with pytest.raises(LockLost), lock:
        cut(lock)

    def fail() -> None:
        cut(lock)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lock:
        fail()


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
    lock: NamedLock, far: NamedLock, proxy: Proxy, limit: Callable[..., Limits]
) -> None:
    limits = limit(silence=3, pulse=0.5, answer=5)
    far.acquire()

    assert not lock.acquire(2 * limits.silence)
    far.check()
    proxy.go_silent()
    assert not lock.acquire(NOW)

    assert lock.acquire(limits.silence + timedelta(seconds=2))
    assert far.lost


@pytest.mark.only_on(*SERVERS)
def test_a_holder_whose_question_is_not_answered_takes_its_lock_for_lost(
    far: NamedLock, proxy: Proxy, limit: Callable[..., Limits]
) -> None:
    """The server may know sooner than after the limit of silence that the network was cut."""
    limit(silence=540, pulse=0.2, answer=0.5)
    far.acquire()
    proxy.go_silent()

    until(lambda: far.lost, 5)
    for call in (far.check, far.release):
        with pytest.raises(LockLost):
            call()  # it does not wait for its answer for ever


@pytest.mark.only_on(*SERVERS)
def test_a_holder_that_could_not_ask_for_long_asks_before_it_counts_on_its_lock(
    far: NamedLock, proxy: Proxy, limit: Callable[..., Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let no other Python thread run until the event is set, as under a GIL that is kept."""
    limit(silence=540, pulse=0.3, answer=0.7, doubt=0.5)
    thawed, wait = threading.Event(), WatchedConnection.wait
    monkeypatch.setattr(WatchedConnection, "wait", lambda self: thawed.wait(30) and wait(self))
    far.acquire()
    threading.Event().wait(0.6)
    assert not far.lost
    proxy.go_silent()
    threading.Event().wait(0.6)

    thawed.set()

    assert far.lost
