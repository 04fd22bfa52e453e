"""An engine with empty tables in partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import (
    URL,
    Engine,
    delete,
)

from tests.contract.claimers import LogBase
from tests.contract.partitions.support import Base
from tests.support import make_engine


@pytest.fixture(scope="module")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    for metadata in (Base.metadata, LogBase.metadata):
        metadata.drop_all(engine)
        metadata.create_all(engine)
    yield engine
    for metadata in (Base.metadata, LogBase.metadata):
        metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    shared_engine.dispose()
    with shared_engine.begin() as connection:
        for table in (*Base.metadata.sorted_tables, *LogBase.metadata.sorted_tables):
            connection.execute(delete(table))
    return shared_engine
