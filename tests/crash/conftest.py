"""A database of its own for each test, and processes to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.models import Base
from tests.support import make_engine


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine with the tables of tests/models.py, which nobody else uses."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()
