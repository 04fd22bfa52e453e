"""Five subscriptions to claim by advisory locks; no lock may be left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import (
    Engine,
    delete,
)
from sqlalchemy.orm import Session

from sa_jobqueue import (
    advisory_session,
)
from tests.contract.advisory.transactions.support import SeatBase
from tests.contract.subscriptions import (
    SubscriptionBase,
    add_subscriptions,
    kept,
)


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    for metadata in (SubscriptionBase.metadata, SeatBase.metadata):
        metadata.create_all(engine)
        with engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(delete(table))
    yield engine
    assert kept(engine) == 0


@pytest.fixture
def mailing(engine: Engine) -> Iterator[Session]:
    with advisory_session(engine) as session:
        add_subscriptions(session, 5)
        yield session
