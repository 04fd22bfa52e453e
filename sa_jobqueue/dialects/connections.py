"""Connections outside the pool, and the driver's own connection below SQLAlchemy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import InvalidRequestError


def dedicated_connection(engine: Engine) -> Connection:
    """Connect as the engine does, without its pool: in AUTOCOMMIT, and really closed at its end.

    Not ``engine.connect()``: where a session has the pool's only connection, its
    thread would wait for a second connection until the pool's timeout.
    """
    apart = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    connection = apart.connect()
    try:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return connection


@contextmanager
def connected_apart(engine: Engine) -> Iterator[Connection]:
    """Give such a connection for a block, and close it at once: close() would roll back first."""
    connection = dedicated_connection(engine)
    # After an error the Connection may have lost it without closing it.
    driver = connection.connection.dbapi_connection
    try:
        yield connection
    finally:
        close_dedicated(connection, driver)


def close_dedicated(connection: Connection, driver: Any) -> None:
    """Close such a connection, whose driver's is given, as it was when it was new."""
    if connection.closed:
        return
    dialect = connection.dialect
    with suppress(*connect_errors(dialect), OSError):  # closed already
        dialect.do_terminate(driver)
    if not connection.invalidated:
        connection.invalidate()
    connection.close()


def driver_connection(connection: Connection) -> Any:
    """Return the driver's own connection object, below any async adapter."""
    pooled = connection.connection
    assert pooled.dbapi_connection is not None
    # pooled.driver_connection is None once the connection is detached from its pool.
    return connection.dialect.get_driver_connection(pooled.dbapi_connection)


def connect_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    """Return the exceptions that a driver raises where it cannot connect.

    asyncpg lets the network's errors out, and before SQLAlchemy 2.1 its own too.
    """
    dbapi: Any = dialect.loaded_dbapi
    asyncpg = getattr(dbapi, "asyncpg", None)
    own = () if asyncpg is None else (OSError, asyncpg.PostgresError)
    return (dbapi.Error, *own)


def autocommit_of(driver: Any) -> bool | None:
    """Ask a driver's connection whether it is in AUTOCOMMIT; None: it does not tell."""
    state = getattr(driver, "autocommit", None)
    if isinstance(state, int):  # a bool, too
        return bool(state)
    asked = getattr(driver, "get_autocommit", None)
    state = asked() if callable(asked) else asked
    return bool(state) if isinstance(state, int) else None


def as_value(dialect: Dialect, quoted: str) -> str:
    """Return a quoted name as the value of a parameter, where no driver halves ``%%``."""
    doubled = "%%" in dialect.identifier_preparer.quote("%")
    return quoted.replace("%%", "%") if doubled else quoted


def listen_to(
    connection: Connection, name: str, function: Callable[..., Any], **options: Any
) -> None:
    """Listen to an event of one Connection, once; the options are those of ``event.listen``.

    If the engine has execution options, ``event.listen`` of SQLAlchemy 2.0.30 refuses its
    connections, though they have events.
    """
    try:
        event.listen(connection, name, function, **options)
    except InvalidRequestError:
        _EventKey(connection, name, function, connection).listen(**options)
