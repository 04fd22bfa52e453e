"""Five subscriptions to claim by advisory locks; no lock may be left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session
from tests.contract.subscriptions import add_subscriptions


@pytest.fixture
def mailing(engine: Engine) -> Iterator[Session]:
    with advisory_session(engine) as session:
        add_subscriptions(session, 5)
        yield session
