"""Subscriptions to claim by advisory locks; no lock may be left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import advisory_session
from tests.contract.subscriptions import SubscriptionBase, kept
from tests.support import with_empty_tables


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    yield with_empty_tables(engine, SubscriptionBase.metadata)
    assert kept(engine) == 0


@pytest.fixture
def mailing(engine: Engine) -> Iterator[Session]:
    with advisory_session(engine) as session:
        yield session


#: A second session, of its own.
beside = mailing
