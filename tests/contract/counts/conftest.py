"""Sessions on the tables of these tests, and on those of all tests."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_jobqueue.counts.count import forget_schema
from tests.contract.round_models import RoundBase
from tests.support import with_empty_tables

from .models import Base


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """The engine with empty tables."""
    forget_schema()
    with_empty_tables(engine, RoundBase.metadata)
    return with_empty_tables(engine, Base.metadata)
