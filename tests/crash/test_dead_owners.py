"""An owner whose process died is dead, and no other owner is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import LockLost, LockNotHeld, Owner, OwnerState, connection_owner, owner_state
from sa_jobqueue.dialects.innodb.named_locks import InnoDBNamedLocks
from sa_jobqueue.dialects.postgresql.named_locks import PostgreSQLNamedLocks
from sa_jobqueue.dialects.watched_connection import Limits
from tests.models import Base
from tests.proxy import Proxy
from tests.support import SERVERS, make_engine

ALIVE, DEAD = OwnerState.ALIVE, OwnerState.DEAD

#: Seconds in which a server notices that a client's connection is closed.
NOTICED = 5


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


class Process:
    """Another process that is an owner, tells its name, and waits."""

    def __init__(self, engine: Engine, own: Callable[[Engine, Connection], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        url = engine.url.render_as_string(hide_password=False)
        self._process = context.Process(target=owning, args=(own, url, there), daemon=True)
        self._process.start()
        self.name: str = self.answer()

    def answer(self) -> Any:
        assert self._pipe.poll(60)
        return self._pipe.recv()

    def tell(self) -> Any:
        """Let the process go on, and wait for its next message."""
        self._pipe.send(None)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Stop the process, and wait until it is stopped."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.join(60)
        self._pipe.close()
        self._process.close()


def owning(own: Callable[[Engine, Connection], None], url: str, told: Connection) -> None:
    own(make_engine(url), told)


def by_lock(engine: Engine, told: Connection) -> None:
    with Owner(engine) as owner:
        while True:
            told.send(owner.name)
            told.recv()


def by_connection(engine: Engine, told: Connection) -> None:
    with engine.connect() as connection, Session(connection) as session:
        told.send(str(connection_owner(session)))
        told.recv()


def and_forking(engine: Engine, told: Connection) -> None:
    with Owner(engine) as owner:
        told.send(owner.name)
        told.recv()
        child = os.fork()
        if child == 0:
            told.send((os.getpid(), name_or_error(owner)))
            owner.close()
            signal.pause()
        signal.pause()


def name_or_error(owner: Owner) -> str:
    try:
        return owner.name
    except LockNotHeld as error:
        return str(error)


def wait_until_dead(session: Session, name: str, seconds: float = NOTICED) -> OwnerState:
    """Ask until an owner is dead or the time is up; return the last state."""
    end = time.monotonic() + seconds
    while True:
        state = owner_state(session, name)
        session.rollback()
        if state is not ALIVE or time.monotonic() > end:
            return state
        time.sleep(0.01)


def test_the_owner_of_a_killed_process_is_dead(engine: Engine, session: Session) -> None:
    with Process(engine, by_lock) as process:
        alive = owner_state(session, process.name)
        session.rollback()

        process.kill()

        assert alive is ALIVE
        assert wait_until_dead(session, process.name) is DEAD


def test_the_owner_of_a_stopped_process_is_alive(engine: Engine, session: Session) -> None:
    with Process(engine, by_lock) as process:
        process.stop()

        assert wait_until_dead(session, process.name, seconds=1) is ALIVE


@pytest.mark.only_on(*SERVERS)
def test_the_connection_of_a_killed_process_is_dead(engine: Engine, session: Session) -> None:
    with Process(engine, by_connection) as process:
        alive = owner_state(session, process.name)
        session.rollback()

        process.kill()

        assert alive is ALIVE
        assert wait_until_dead(session, process.name) is DEAD


@pytest.mark.only_on(*SERVERS)
def test_the_connection_of_a_stopped_process_is_alive(engine: Engine, session: Session) -> None:
    with Process(engine, by_connection) as process:
        process.stop()

        assert wait_until_dead(session, process.name, seconds=1) is ALIVE


def test_the_owner_of_a_process_that_was_stopped_goes_on_under_its_name(
    engine: Engine, session: Session
) -> None:
    with Process(engine, by_lock) as process:
        process.stop()
        process.go_on()

        assert process.tell() == process.name
        assert owner_state(session, process.name) is ALIVE


def test_a_forked_child_is_not_the_owner_and_does_not_keep_it_alive(
    engine: Engine, session: Session
) -> None:
    with Process(engine, and_forking) as process:
        child, said = process.tell()
        try:
            alive = owner_state(session, process.name)
            session.rollback()

            process.kill()

            assert "was opened before this process was forked" in said
            assert alive is ALIVE
            assert wait_until_dead(session, process.name) is DEAD
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.only_on(*SERVERS)
def test_an_owner_whose_network_is_cut_is_dead_after_the_limit_and_has_noticed_it(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Limits(
        silence=timedelta(seconds=2), pulse=timedelta(seconds=0.2), answer=timedelta(seconds=1)
    )
    monkeypatch.setattr(PostgreSQLNamedLocks, "limits", short)
    monkeypatch.setattr(InnoDBNamedLocks, "limits", short)
    with Proxy(engine.url) as proxy:
        away = make_engine(proxy.url)
        with Owner(away) as owner:
            name = owner.name
            alive = owner_state(session, name)
            session.rollback()

            proxy.go_silent()
            died = wait_until_dead(session, name, seconds=2 * short.silence.total_seconds())
            knew = owner._held is not None and owner._held.lock.lost

        away.dispose()

    assert (alive, died, knew) == (ALIVE, DEAD, True)


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_comes_back_after_a_cut_has_another_name(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(engine.url) as proxy, Proxy(engine.url) as mended:
        away = make_engine(proxy.url)
        with Owner(away) as owner:
            name = owner.name
            proxy.close()
            monkeypatch.setattr(away.dialect, "connect", connecting_to(engine, mended.url))

            with pytest.raises(LockLost):
                ask_while_it_is(name, owner)

            assert owner_state(session, owner.name) is ALIVE
            session.rollback()
            assert wait_until_dead(session, name) is DEAD
        away.dispose()


def ask_while_it_is(name: str, owner: Owner) -> None:
    """Ask an owner for its name until it knows of the lost connection, which takes a moment."""
    while owner.name == name:
        pass


def connecting_to(engine: Engine, url: URL) -> Callable[..., Any]:
    """Return a connect() to another address than the engine's."""
    args, kwargs = engine.dialect.create_connect_args(url)
    connect = engine.dialect.loaded_dbapi.connect
    return lambda *_, **__: connect(*args, **kwargs)
