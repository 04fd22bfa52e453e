"""Real extensions of SQLAlchemy, each in the version that `tox -e integrations` installs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine

from tests.models import Base
from tests.support import as_new, make_engine, with_empty_tables


@pytest.fixture(scope="module")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    return with_empty_tables(as_new(shared_engine), Base.metadata)
