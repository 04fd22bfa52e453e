"""Sessions on the tables of the overview's queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue.overview.schema import forget_schema
from tests.support import make_engine, with_empty_tables

from .models import Base


@pytest.fixture(scope="session")
def post_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables of the models, for the whole run."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(post_engine: Engine) -> Engine:
    """The engine with empty tables."""
    forget_schema()
    return with_empty_tables(post_engine, Base.metadata)
