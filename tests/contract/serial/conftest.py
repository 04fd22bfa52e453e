"""An engine with empty tables of jobs with serial keys."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.serial.keyed import emptied


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with the tables of this test, which are empty."""
    return emptied(shared_engine)
