"""Engines for many processes, and for claimers that wait only a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.contract.strict_order.claimers import LogBase
from tests.models import Base
from tests.support import make_engine


@pytest.fixture
def queue_engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine on a database of its own, with the tables."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    LogBase.metadata.create_all(engine)
    yield engine
    engine.dispose()
