"""Sessions on the tables of these tests, and on those of all tests."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.round_models import RoundBase
from tests.support import with_empty_tables

from .models import Base


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """The engine with empty tables; a new object, so that the tables are looked for anew."""
    with_empty_tables(engine, RoundBase.metadata)
    return with_empty_tables(engine, Base.metadata).execution_options()
