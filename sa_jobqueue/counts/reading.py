"""Reads with a time limit for each statement; a look at queues, none of which spoils it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..databases import database_of, database_of_dialect, is_transient
from .count import queues_there
from .stats import QueueStats, overview

#: How long a statement may take.
TIME_LIMIT = timedelta(seconds=5)

#: How long a statement may take when others have used up TIME_LIMIT.
LEAST_LIMIT = timedelta(seconds=0.5)


@contextmanager
def reading(engine: Engine, limit: timedelta | None = None) -> Iterator[Session]:
    """Give a session for reads, in no transaction yet; it is rolled back at the end.

    Args:
        limit: by default TIME_LIMIT.

    Raises:
        DBAPIError: the database is away, or a statement took longer than the limit.
    """
    most = TIME_LIMIT if limit is None else limit
    with engine.connect() as connection, ExitStack() as limits:
        database = database_of(connection)
        in_autocommit = database.in_autocommit(connection)
        connection.rollback()  # the level of a transaction is set before it begins
        if in_autocommit:
            connection.execution_options(isolation_level=database.transaction_level)
        with Session(connection) as session:

            @event.listens_for(session, "after_begin")
            def limit_time(_session: Session, _transaction: object, begun: Connection) -> None:
                limits.enter_context(database.time_limit(begun, most))

            yield session


#: What was seen of a queue; None: it has no table yet; an error: it could not be read.
Seen = QueueStats | DBAPIError | None


def look(engine: Engine, queues: Mapping[str, Any]) -> dict[str, Seen]:
    """Describe queues. One whose table is locked or lacks a column leaves the others readable.

    Raises:
        DBAPIError: the database is away, or all of it is locked.
    """
    found: dict[str, Seen] = {}
    deadline = time.monotonic() + TIME_LIMIT.total_seconds()
    asked = [dict(queues)]
    while asked:  # an error ends the transaction
        left = timedelta(seconds=deadline - time.monotonic())
        with reading(engine, max(left, LEAST_LIMIT)) as session:
            while asked:
                some = asked.pop(0)
                try:
                    there = queues_there(session.connection(), some)
                    seen = zip(there, overview(session, there.values()), strict=True)
                    found |= dict.fromkeys(some) | dict(seen)
                except DBAPIError as error:
                    if _concerns_all(session, error):
                        raise
                    if len(some) > 1:
                        asked = [{name: queue} for name, queue in some.items()]
                    else:
                        found |= dict.fromkeys(some, error)
                    break
    return {name: found[name] for name in queues}


def _concerns_all(session: Session, error: DBAPIError) -> bool:
    """Tell whether no other table can be read either."""
    one_writer = database_of_dialect(session.get_bind().dialect).one_writer
    return error.connection_invalidated or (one_writer and is_transient(error))
