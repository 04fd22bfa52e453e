"""The sessions that a worker is given: whether it can use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import URL, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from ..errors import ArgumentError
from ..sessions.transactions import routed_to_writes
from .lanes import Lane


def what_to_give(given: Any, prefix: str = "") -> str | None:
    """Say what to give instead of something that is neither an engine nor a sessionmaker.

    Args:
        prefix: of SQLAlchemy's names for asyncio.
    """
    if isinstance(given, str | URL):
        return f"make an engine of it with create_{prefix}engine()"
    if hasattr(given, "session_factory"):  # a scoped_session
        return "a worker opens its own sessions; give its session_factory"
    if isinstance(given, type):
        return f"make a factory of it with {prefix}sessionmaker(engine, class_=..)"
    if hasattr(given, "get_bind") or hasattr(given, "in_transaction"):  # a session, a connection
        return "a worker opens several of its own; give its engine, or the sessionmaker"
    return None


def engine_of(open_session: Callable[[], Session], mapper: Any) -> Engine:
    """Return the engine that a sessionmaker's sessions write a class with.

    Raises:
        ArgumentError: they are bound to a connection, or to nothing.
    """
    with open_session() as session:
        try:
            bind = session.get_bind(**routed_to_writes(mapper))
        except UnboundExecutionError as error:
            raise ArgumentError(
                f"this sessionmaker knows no engine for {mapper.class_.__name__}: bind it to an "
                "Engine, as in sessionmaker(engine)"
            ) from error
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
        if not session.autobegin:
            raise ArgumentError(
                "a worker's sessions begin their transactions by themselves: give it the Engine, "
                "or a sessionmaker without autobegin=False"
            )
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
