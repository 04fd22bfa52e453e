"""An engine with empty tables of rounds."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.contract.round_models import emptied


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return emptied(engine)
