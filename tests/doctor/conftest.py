"""An engine whose table of mails is made anew for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.support import make_engine

from .models import Base, Mail


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    """An engine with an empty table of mails, as its model declares it."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Mail.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table
    yield engine
    engine.dispose()
