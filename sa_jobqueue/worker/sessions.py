"""The sessions that a worker is given: whether it can use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..errors import ArgumentError
from ..sessions.transactions import routed_to_writes
from .lanes import Lane


def engine_of(open_session: Callable[[], Session], mapper: Any) -> Engine:
    """Return the engine that a sessionmaker's sessions write a class with.

    Raises:
        ArgumentError: they are bound to a connection.
    """
    with open_session() as session:
        bind = session.get_bind(**routed_to_writes(mapper))
    if not isinstance(bind, Engine):
        raise ArgumentError(
            "a worker needs several connections, and this sessionmaker is bound to one Connection: "
            "give a sessionmaker that is bound to an Engine"
        )
    return bind


def check_sessions(open_session: Callable[[], Session], lanes: Sequence[Lane[Any]]) -> None:
    """Refuse sessions that others commit, and where handlers are transactional, in two phases.

    Raises:
        ArgumentError: it tells which sessions to give instead.
    """
    with open_session() as session:
        if session.twophase and any(lane.transactional for lane in lanes):
            raise ArgumentError(
                "transactional handlers need sessions that commit in one phase: give the worker a "
                "sessionmaker without twophase=True"
            )
        try:
            session.commit()  # nothing was written: only listeners notice
        except Exception as error:
            raise ArgumentError(
                "a worker commits its sessions itself, and a listener of this sessionmaker refuses "
                f"that ({error}): give the Engine, or a sessionmaker without the listener"
            ) from error
