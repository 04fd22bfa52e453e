"""MySQL and MariaDB: how long a statement may run, and wait for locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection

#: MySQL: the time of max_execution_time is over. MariaDB: that of max_statement_time.
TIME_IS_OVER = (3024, 1969)


@contextmanager
def variables_set(connection: Connection, values: Mapping[str, float]) -> Iterator[None]:
    """Inside, variables of the server's session have these values."""
    asked = ", ".join(f"@@SESSION.{name}" for name in values)
    own = connection.exec_driver_sql(f"SELECT {asked}").one()
    _set(connection, values)
    try:
        yield
    finally:
        if not connection.invalidated:
            _set(connection, dict(zip(values, own, strict=True)))


def _set(connection: Connection, values: Mapping[str, float]) -> None:
    assignments = ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
    connection.exec_driver_sql(f"SET {assignments}")
