"""A connection to SQLite that was closed under our hands is told of by the next statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from tests.models import Email


def test_a_closed_connection_is_told_of_by_the_next_statement() -> None:
    with create_engine("sqlite://").connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.close()

        with Session(connection) as session, pytest.raises(ProgrammingError, match="closed"):
            claim(session, Email, owner="w")
        connection.invalidate()
