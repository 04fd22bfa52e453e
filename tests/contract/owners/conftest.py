"""An owner, sessions on one connection, owners whose connection is cut, and states to wait for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, OwnerState, owner_state
from tests.support import cut_connections, heard, until

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN


@pytest.fixture
def owner(engine: Engine) -> Iterator[Owner]:
    with Owner(engine) as owner:
        yield owner


@contextmanager
def connected(engine: Engine) -> Iterator[tuple[Connection, Session]]:
    """Open a session on one connection, which is closed at the end, not pooled."""
    with engine.connect() as connection, Session(connection, expire_on_commit=False) as session:
        yield connection, session
        connection.detach()


def state_of(engine: Engine, name: str) -> OwnerState:
    """Ask for a state on a connection of its own."""
    with Session(engine) as session:
        return owner_state(session, name)


def wait_until(session: Session, name: str, wanted: OwnerState) -> None:
    """Ask until the server has noticed that a connection is closed: it takes a moment."""

    def is_noticed() -> bool:
        state = owner_state(session, name)
        session.rollback()
        return state is wanted

    until(is_noticed)


def cut(engine: Engine, name: str) -> None:
    """Have the server end all connections, also that of an owner's lock; wait for the end."""
    cut_connections(engine.url, engine.dialect.name)
    engine.dispose()
    with Session(engine) as session:
        wait_until(session, name, DEAD)


@contextmanager
def rewritten(engine: Engine, pattern: str, text: str) -> Iterator[None]:
    """Have the statements of an engine ask something else, as if the server were another."""

    def rewrite(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return re.sub(pattern, text, statement), parameters

    with heard(engine, "before_cursor_execute", rewrite, retval=True):
        yield
