"""An engine with empty tables of jobs with serial keys."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.serial.keyed import emptied
from tests.models import Base
from tests.support import with_empty_tables


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with the tables of this test, which are empty."""
    return with_empty_tables(emptied(shared_engine), Base.metadata)
