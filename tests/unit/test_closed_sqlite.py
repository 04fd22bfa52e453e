"""A connection to SQLite that was closed under our hands is told of by the next statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError

from sa_jobqueue.dialects import database_of


def test_a_closed_connection_is_told_of_by_the_next_statement() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.close()

        assert not database_of(connection).in_autocommit(connection)
        with pytest.raises(ProgrammingError, match="closed"):
            connection.exec_driver_sql("SELECT 1")
        connection.invalidate()
