"""A named lock of the test's own, and ways to lose it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue import NamedLock, named_lock
from sa_jobqueue.dialects.watched_connection import Limits
from tests.contract.named_locks.support import LOCKS
from tests.lockers import NOW
from tests.support import make_engine


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url, tls=True)  # a lock watches its driver's socket
    yield engine
    engine.dispose()


@pytest.fixture
def lock(engine: Engine, request: pytest.FixtureRequest) -> Iterator[NamedLock]:
    """A lock under the test's own name, given back at its end."""
    lock = named_lock(engine, request.node.name, timeout=NOW)
    yield lock
    if lock.held:
        lock.release()


@pytest.fixture
def limits(db_alias: str, monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Limits that a test can wait for; servers count in seconds."""
    short = Limits(
        silence=timedelta(seconds=3),
        pulse=timedelta(seconds=0.5),
        answer=timedelta(seconds=5),
    )
    monkeypatch.setattr(LOCKS[db_alias], "limits", short)
    return short
