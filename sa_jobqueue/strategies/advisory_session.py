"""Sessions and connections that can claim by advisory locks.

::

    with advisory_session(engine) as session:
        due = claim(session, Subscription, Subscription.last_mail_at < started,
                    strategy="advisory", limit=100)
        for subscription in due:
            send(subscription)
            subscription.last_mail_at = started
            complete(session, subscription)
            session.commit()             # releases this row

PostgreSQL only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session

from ..dialects import Database, database_of
from ..errors import UnsupportedDatabase

#: The isolation levels in which a second statement sees what was committed after the first.
ISOLATION = ("read committed", "read uncommitted")


@contextmanager
def advisory_session(engine: Engine, **options: Any) -> Iterator[Session]:
    """Open a session on one connection, to claim by advisory locks.

    Its end releases all claims that were not finished.

    Args:
        engine: an Engine for PostgreSQL, not through a transaction pooler.
        options: for the Session; ``expire_on_commit`` is False unless given.

    Raises:
        UnsupportedDatabase: the database is not PostgreSQL, or a pooler is in between.
    """
    options.setdefault("expire_on_commit", False)
    with engine.connect() as connection:
        prepare_connection(connection)
        with Session(connection, **options) as session:
            yield session


def prepare_connection(connection: Connection) -> None:
    """Prepare a connection for claims by advisory locks, outside of any transaction.

    Raises:
        UnsupportedDatabase: the connection cannot hold them.
    """
    database = database_of(connection)
    check_database(database)
    if not database.in_autocommit(connection) and not _is_read_committed(connection):
        connection.execution_options(isolation_level="READ COMMITTED")
    check_connection(connection, database)
    database.notice_silence(connection)
    connection.commit()


def _is_read_committed(connection: Connection) -> bool:
    # Ask before setting the level: psycopg2 sends a level that was set again at each change
    # to AUTOCOMMIT and back, two round trips for each unlock.
    level = connection.execute(select(func.current_setting("transaction_isolation"))).scalar_one()
    connection.rollback()
    return level in ISOLATION


def check_database(database: Database) -> None:
    """Refuse a database without advisory locks.

    Raises:
        UnsupportedDatabase: with the way out.
    """
    if not database.advisory_locks:
        raise UnsupportedDatabase(
            f"{database} has no advisory locks for rows; use strategy='auto', and a plain Session"
        )


def check_connection(connection: Connection, database: Database) -> None:
    """Refuse a connection that cannot keep rows by advisory locks.

    Raises:
        UnsupportedDatabase: with the way out.
    """
    asked = select(func.current_setting("transaction_isolation"), func.pg_backend_pid())
    isolation, backend = connection.execute(asked).one()
    if isolation not in ISOLATION:
        raise UnsupportedDatabase(
            f"a claim by advisory locks must see what others have finished meanwhile, and "
            f"{isolation.upper()} hides that: use READ COMMITTED, which advisory_session(engine) "
            "sets"
        )
    if database.told_backend(connection) not in (None, backend):
        raise UnsupportedDatabase(
            "a claim by advisory locks needs a server connection of its own, and this engine "
            "connects through a pooler such as PgBouncer, which shares connections. Give "
            "advisory_session() an engine that connects to the server itself"
        )
