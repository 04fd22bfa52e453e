"""A named lock of the test's own, and ways to lose it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue import NamedLock, named_lock
from sa_jobqueue.databases import Limits

# Inner: the limits of silence are no option of the library; its own take minutes.
from sa_jobqueue.databases.database import Database
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
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Limits]:
    """Set limits, in seconds, for which a test can wait; servers count in whole seconds."""

    def limit(**seconds: float) -> Limits:
        limits = Limits(**{name: timedelta(seconds=value) for name, value in seconds.items()})
        monkeypatch.setattr(Database, "lock_limits", limits)
        return limits

    return limit


def same(lock: NamedLock) -> NamedLock:
    """Make another lock of the same name."""
    return NamedLock(lock.engine, lock.name, lock.timeout)


def is_free(lock: NamedLock) -> bool:
    """Tell whether somebody else could have the lock now."""
    other = same(lock)
    taken = other.acquire(NOW)
    if taken:
        other.release()
    return taken
