"""What is asked of a driver itself, below SQLAlchemy's Connection and below async adapters."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect


def driver_connection(connection: Connection) -> Any:
    """Return the driver's own connection object, below any adapter."""
    pooled = connection.connection
    assert pooled.dbapi_connection is not None
    # pooled.driver_connection is None once it is detached from its pool.
    return connection.dialect.get_driver_connection(pooled.dbapi_connection)


def connect_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    """Return what a driver raises where it cannot connect.

    asyncpg lets the network's errors out, and before SQLAlchemy 2.1 its own too.
    """
    dbapi: Any = dialect.loaded_dbapi
    asyncpg = getattr(dbapi, "asyncpg", None)
    own = () if asyncpg is None else (OSError, asyncpg.PostgresError)
    return (dbapi.Error, *own)


def autocommit_of(driver: Any) -> bool | None:
    """Ask a driver's connection whether it commits by itself; None: it does not tell."""
    state = getattr(driver, "autocommit", None)
    if isinstance(state, bool | int):
        return bool(state)
    asked = getattr(driver, "get_autocommit", None)
    state = asked() if callable(asked) else asked
    return bool(state) if isinstance(state, bool | int) else None
