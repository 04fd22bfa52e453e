"""An engine with empty tables of rounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_jobqueue.owners.named_lock import lock_holder
from tests.contract.round_models import emptied


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return emptied(engine)


@pytest.fixture(autouse=True)
def _no_lock_is_left(engine: Engine) -> Iterator[None]:
    yield
    with engine.connect() as connection:
        assert lock_holder(connection, LOCK) is None


LOCK = "sa_jobqueue rounds of round_subscriber"
