"""A queue whose table refuses some changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.contract.worker.faults import Base
from tests.support import with_empty_tables


@pytest.fixture
def picky(engine: Engine) -> Iterator[Session]:
    """A session on the empty table of Picky."""
    Base.metadata.create_all(engine)
    with_empty_tables(engine, Base.metadata)
    with Session(engine) as session:
        yield session
