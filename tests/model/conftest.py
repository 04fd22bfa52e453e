"""An engine with the isolation that queues with keys need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.support import make_engine


@pytest.fixture(scope="module")
def migrated(db_url: URL, db_alias: str) -> Iterator[Engine]:
    """An engine with the isolation that queues with keys need."""
    # As docs/order.md wants it of queues with keys.
    level = "SERIALIZABLE" if db_alias == "sqlite" else "READ COMMITTED"
    engine = make_engine(db_url, isolation_level=level)
    yield engine
    engine.dispose()
