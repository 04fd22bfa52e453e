"""A database for each test, with a table of orders that is no queue yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine, NullPool

from tests.migration.support import ORDERS, Order
from tests.support import make_engine


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine of an empty database."""
    engine = make_engine(fresh_database, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def shop(engine: Engine) -> Engine:
    """The engine of a database with a table of orders, without rows."""
    ORDERS.create(engine)
    return engine


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """A queue with its columns and without its indexes."""
    Order.__table__.create(engine)  # type: ignore[attr-defined]  # a Table
    with engine.begin() as connection:
        for index in Order.__table__.indexes:  # type: ignore[attr-defined]  # as above
            index.drop(connection)
    return engine


@pytest.fixture
def observer(fresh_database: URL) -> Iterator[Engine]:
    """Another engine of the same database, to look at it from outside."""
    engine = make_engine(fresh_database, poolclass=NullPool)
    yield engine
    engine.dispose()
