"""The library's own transactions: begun for writing, run again after transient errors.

And an error with the way out, if the application has not created a table of the library.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table, update
from sqlalchemy.orm import Session

from ..databases import database_of, is_missing_table, is_read_only, is_transient
from ..databases.connections import Connecting, driver_errors
from ..errors import MissingTable
from .writer import note_own_transaction

R = TypeVar("R")

#: How often a transaction with transient errors is tried.
TRIES = 10


def run_in_transaction(
    bind: Engine | Connection,
    work: Callable[[Session], R],
    *,
    open_session: Callable[[], Session] | None = None,
    mapper: Any = None,
    reads_first: bool = True,
    prepare: Callable[[Connection], object] | None = None,
) -> R:
    """Run `work` in a session, commit, and return its result.

    On an AUTOCOMMIT engine it is one transaction, too.

    Args:
        open_session: returns a new or closed session; None: a plain one on `bind`.
        mapper: of the class whose rows are written: a session of the application may route its
            writes by the class.
        reads_first: begin for writing. Otherwise, on SQLite, only the first write takes the write
            lock. The lock is then held for a shorter time, but `work` must not read first.
        prepare: called with the connection before `work`, in the transaction.
    """
    opened = Session(bind, expire_on_commit=False) if open_session is None else open_session()
    routed = None if mapper is None else routed_to_writes(mapper)
    with opened as session:
        try:
            with Connecting(bind):
                connection = session.connection(bind_arguments=routed)
            database = database_of(connection)
            in_autocommit = database.in_autocommit(connection)
            if in_autocommit and isinstance(bind, Engine):
                session.rollback()  # the level of a transaction is set before it begins
                with Connecting(bind):
                    connection = session.connection(
                        bind_arguments=routed,
                        execution_options={"isolation_level": database.transaction_level},
                    )
                in_autocommit = database.in_autocommit(connection)
            if not in_autocommit:
                note_own_transaction(connection)
                if reads_first:
                    database.begin_write(connection, is_new=isinstance(bind, Engine))
            if prepare is not None:
                prepare(connection)
            result = work(session)
            session.commit()
        except BaseException as error:
            if isinstance(bind, Engine) and is_read_only(error):
                session.invalidate()  # the next connection may lead to the new primary
            # Not left to close(): after a COMMIT that failed, it leaves the
            # transaction open on the pooled connection.
            _roll_back_session(session)
            raise
        return result


def routed_to_writes(mapper: Any) -> dict[str, Any]:
    """Return the bind arguments that route a statement as a write to this class."""
    return {"mapper": mapper, "clause": update(mapper.local_table)}


def _roll_back_session(session: Session) -> None:
    """Roll back after an error, which must stay the error that is raised."""
    try:
        session.rollback()
    except Exception:
        session.invalidate()


def run_with_retries(
    bind: Engine | Connection, work: Callable[[Session], R], *, within: timedelta | None = None
) -> R:
    """Run `work` in a new session and commit; try again after a transient error.

    Args:
        within: no further try begins after this time; None: TRIES is the only limit.

    Raises:
        Exception: an error that is not transient, or the last of TRIES transient ones: a
            DBAPIError, or what a handle_error listener of the application has made of it.
    """
    deadline = math.inf if within is None else time.monotonic() + within.total_seconds()
    for tries in range(1, TRIES):
        try:
            return run_in_transaction(bind, work)
        except Exception as error:
            if not is_transient(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.02 * 2**tries * random.uniform(0.5, 1.0))
    return run_in_transaction(bind, work)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Make everything inside the block one transaction, also in autocommit; then commit it."""
    database = database_of(connection)
    try:
        if database.in_autocommit(connection):
            with database.transaction_in_autocommit(connection):
                yield
        else:
            database.begin(connection)
            if not connection.in_transaction():
                # COPY bypasses SQLAlchemy, which would not know that there is
                # something to commit.
                connection.begin()
            database.begin_write(connection)
            yield
        connection.commit()
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: Connection) -> None:
    connection.rollback()
    # SQLite refuses to commit while somebody reads, and its transaction stays open.
    # SQLAlchemy believes that it has ended, so the next commit would include its rows.
    if not connection.invalidated:
        connection.connection.rollback()


def connected(engine: Engine) -> Connection:
    """Connect; raise OperationalError in place of a driver's own errors."""
    with Connecting(engine):
        return engine.connect()


@contextmanager
def connected_outside_pool(engine: Engine) -> Iterator[Connection]:
    """Connect with the engine's settings and events, but not from its pool.

    The pool's connections may all be in use by threads that wait for us.
    """
    pool = engine.pool.recreate()
    try:
        with Connecting(engine):
            found = pool.connect()
        with Connection(engine, found) as connection:
            yield connection
    finally:
        pool.dispose()


@contextmanager
def missing_tables_named(tables: Callable[[], Iterable[Table]]) -> Iterator[None]:
    """Raise MissingTable where the database does not have one of the tables.

    Args:
        tables: returns the tables; called only after an error of the database.

    Raises:
        MissingTable: it names the table and the way out.
    """
    try:
        yield
    except Exception as error:  # a handle_error listener may raise what it likes
        if not is_missing_table(error):
            raise
        message = " ".join(map(str, driver_errors(error)))
        for table in tables():
            if re.search(rf"\b{re.escape(table.name)}\b", message, re.IGNORECASE):
                raise MissingTable(
                    f"there is no table {table.fullname!r} in the database: create the tables that "
                    "are missing by metadata.create_all(engine), or by a migration, as `alembic "
                    "revision --autogenerate` writes it"
                ) from error
        raise
