"""An owner whose process died is dead, and no other owner is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import LockNotHeld, Owner, OwnerState, connection_owner, owner_state
from tests.processes import Victim
from tests.support import make_engine

pytestmark = pytest.mark.by_turns("mysql", "mariadb")

ALIVE, DEAD = OwnerState.ALIVE, OwnerState.DEAD

#: Seconds in which a server notices that a client's connection is closed.
NOTICED = 5


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def by_lock(url: str, told: Connection) -> None:
    with Owner(make_engine(url)) as owner:
        while True:
            told.send(owner.name)
            told.recv()


def by_connection(url: str, told: Connection) -> None:
    with make_engine(url).connect() as connection, Session(connection) as session:
        while True:
            told.send(str(connection_owner(session)))
            told.recv()


def and_forking(url: str, told: Connection) -> None:
    with Owner(make_engine(url)) as owner:
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


@pytest.mark.parametrize("own", [by_lock, by_connection])
def test_an_owner_is_alive_until_its_process_is_killed(
    engine: Engine, session: Session, own: Callable[[str, Connection], None], db_alias: str
) -> None:
    if own is by_connection and db_alias == "sqlite":
        return  # its connections have no names
    with Victim(engine.url, own) as process:
        name = process.hears()
        assert owner_state(session, name) is ALIVE
        session.rollback()

        process.stand_still()
        assert wait_until_dead(session, name, seconds=1) is ALIVE
        process.signal(signal.SIGCONT)
        process.pipe.send(None)
        assert process.hears() == name

        process.kill()
        assert wait_until_dead(session, name) is DEAD


def test_a_forked_child_is_not_the_owner_and_does_not_keep_it_alive(
    engine: Engine, session: Session
) -> None:
    with Victim(engine.url, and_forking) as process:
        name = process.hears()
        process.pipe.send(None)
        child, said = process.hears()
        try:
            assert "was opened before this process was forked" in said
            assert owner_state(session, name) is ALIVE
            session.rollback()

            process.kill()

            assert wait_until_dead(session, name) is DEAD
        finally:
            os.kill(child, signal.SIGKILL)
