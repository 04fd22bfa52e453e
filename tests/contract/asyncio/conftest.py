"""An async engine for each driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from tests.contract.asyncio.support import (
    DRIVERS_OF_INNODB,
    DRIVERS_OF_POSTGRESQL,
    DRIVERS_OF_SQLITE,
    make_async_engine,
)
from tests.contract.asyncio.worker_support import statuses
from tests.models import Base, add_emails
from tests.support import make_engine


@pytest.fixture(params=[*DRIVERS_OF_POSTGRESQL, *DRIVERS_OF_INNODB, *DRIVERS_OF_SQLITE])
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def async_engine(engine: Engine, db_url: URL, driver: str) -> AsyncEngine:
    """An async engine for the database of `engine`, its tables empty."""
    return make_async_engine(db_url, driver)


@pytest.fixture
def apart(fresh_database: URL, driver: str) -> Iterator[AsyncEngine]:
    """An async engine for a database of its own, whose connections may be cut."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, *"abc")
    engine.dispose()
    yield make_async_engine(fresh_database, driver)
    with Session(engine) as session:
        assert statuses(session) == dict.fromkeys("abc", "done")
    engine.dispose()
