"""An engine with empty tables in partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.contract.claimers import LogBase
from tests.contract.partitions.support import Base
from tests.support import as_new, make_engine, with_empty_tables


@pytest.fixture(scope="package")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables, for this folder; to create partitions takes InnoDB seconds."""
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
    """The engine with empty tables in partitions, and an empty log."""
    as_new(shared_engine)
    for metadata in (Base.metadata, LogBase.metadata):
        with_empty_tables(shared_engine, metadata)
    return shared_engine
