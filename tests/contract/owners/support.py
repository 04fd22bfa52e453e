"""Sessions on one connection, and states of owners to wait for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import OwnerState, owner_state


@contextmanager
def connected(engine: Engine) -> Iterator[tuple[Connection, Session]]:
    """Open a session on one connection, which is closed at the end, not pooled."""
    with engine.connect() as connection, Session(connection, expire_on_commit=False) as session:
        yield connection, session
        connection.detach()


def wait_until(session: Session, name: str, wanted: OwnerState) -> None:
    """Ask until the server has noticed that a connection is closed: it takes a moment."""
    for _ in range(500):
        state = owner_state(session, name)
        session.rollback()
        if state is wanted:
            return
        signal.sigtimedwait([], 0.01)
    assert state is wanted
