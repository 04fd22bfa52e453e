"""Tables of their own for jobs whose positions are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import (
    URL,
    delete,
)
from sqlalchemy.orm import (
    Session,
)

from tests.contract.positions.support import Base
from tests.support import make_engine


@pytest.fixture(scope="module")
def own_tables(db_url: URL) -> Iterator[None]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def mine(own_tables: None, session: Session) -> Session:
    """A session beside which the tables of this module are empty."""
    for table in Base.metadata.sorted_tables:
        session.execute(delete(table))
    session.commit()
    return session
