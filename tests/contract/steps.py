"""Steps of one session, taken right before a statement of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import is_transient
from tests.support import heard


@contextmanager
def before(engine: Engine, beginning: str, step: Callable[[], object]) -> Iterator[list[int]]:
    """Take a step of the other session before the first statement with this beginning."""
    taken: list[int] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        unbound = statement.lstrip().replace(" FORCE INDEX (PRIMARY)", "")
        if not taken and unbound.startswith(beginning):
            taken.append(1)
            step()

    with heard(engine, "before_cursor_execute", see):
        yield taken


def unless_refused(step: Callable[[], None], session: Session) -> Callable[[], None]:
    """Ignore that a busy database refuses the other session: then it claimed nothing."""

    def take() -> None:
        try:
            step()
        except DBAPIError as error:
            session.rollback()
            if not is_transient(error):
                raise

    return take


@contextmanager
def before_statement(session: Session, number: int, step: Callable[[], None]) -> Iterator[None]:
    """Take a step right before a statement of a session's transaction."""
    seen: list[str] = []

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if conn.connection.dbapi_connection is not connection:
            return  # the step's own
        seen.append(statement)
        if len(seen) == number + 1:
            step()

    connection = session.connection().connection.dbapi_connection
    with heard(session.get_bind(), "before_cursor_execute", see):
        yield
