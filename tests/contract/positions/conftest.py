"""Tables of their own for jobs whose positions are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from tests.contract.positions.support import Base
from tests.support import make_engine, with_empty_tables


@pytest.fixture(scope="package")
def own_tables(db_url: URL) -> Iterator[None]:
    """The tables, for this folder."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def mine(own_tables: None, shared_engine: Engine, session: Session) -> Session:
    """A session beside which the tables of this folder are empty."""
    with_empty_tables(shared_engine, Base.metadata)
    return session
