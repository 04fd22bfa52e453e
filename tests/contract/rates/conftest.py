"""An engine with empty tables of jobs with rates."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.rates.rated import RatedBase
from tests.support import as_new, with_empty_tables


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with the tables of this test, which are empty."""
    return with_empty_tables(as_new(shared_engine), RatedBase.metadata)
