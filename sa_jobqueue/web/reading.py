"""Transactions that read for a page: each statement has a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import database_of
from ..model.columns import first_line

#: How long a statement may take.
TIME_LIMIT = timedelta(seconds=5)


@contextmanager
def reading(engine: Engine, limit: timedelta | None = None) -> Iterator[Session]:
    """Give a session for reads; it is rolled back at the end.

    Args:
        limit: the longest time of a statement; None: TIME_LIMIT.

    Raises:
        DBAPIError: the database is away, or a statement took longer.
    """
    with Session(engine) as session:
        connection = _in_transaction(session)
        with database_of(connection).time_limit(connection, limit or TIME_LIMIT):
            yield session


@contextmanager
def reading_again(engine: Engine) -> Iterator[Session]:
    """Give a session in no transaction, for several of them; each statement has the limit."""
    with engine.connect() as connection, ExitStack() as limits, Session(connection) as session:

        @event.listens_for(session, "after_begin")
        def limit_time(_session: Session, _transaction: object, begun: Connection) -> None:
            limits.enter_context(database_of(begun).time_limit(begun, TIME_LIMIT))

        yield session


def drivers_words(error: Exception) -> str:
    """Return an error of the database as its driver words it, without statement and parameters."""
    return first_line(error.orig if isinstance(error, DBAPIError) else error)


def _in_transaction(session: Session) -> Connection:
    """Connect; on an AUTOCOMMIT engine the reads are one transaction, too."""
    connection = session.connection()
    database = database_of(connection)
    if database.in_autocommit(connection):
        session.rollback()  # the level of a transaction is set before it begins
        level = {"isolation_level": database.transaction_level}
        connection = session.connection(execution_options=level)
    return connection
