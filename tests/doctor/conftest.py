"""An engine whose tables are made anew for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.support import make_engine

from .models import Base


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    """An engine with empty tables, as the models declare them."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()
