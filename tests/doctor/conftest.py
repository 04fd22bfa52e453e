"""An engine whose table of mails is made anew for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue.model.mapping import mapping_of
from tests.support import make_engine

from .models import Base, Mail


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    """An engine with an empty table of mails, as its model declares it."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    mapping_of(Mail).table.create(engine)
    yield engine
    engine.dispose()
