"""Workers of both kinds, and a clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.clock import Clock
from tests.contract.worker import faults, ledger
from tests.contract.worker.driver import KINDS, Workers
from tests.support import with_empty_tables


@pytest.fixture(params=KINDS)
def workers(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Workers]:
    """Workers in threads, then in an event loop; the tables of tests.models are empty."""
    workers = Workers(request.param, engine)
    yield workers
    if workers.awaits:
        workers.engine.dispose(close=False)


@pytest.fixture
def threads(engine: Engine) -> Workers:
    """Workers in threads alone."""
    return Workers("threads", engine)


@pytest.fixture
def picky(engine: Engine) -> None:
    """Empty the table of Picky."""
    with_empty_tables(engine, faults.Base.metadata)


@pytest.fixture
def ledger_tables(engine: Engine) -> None:
    """Empty the tables of the ledger."""
    with_empty_tables(engine, ledger.Base.metadata)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let the test's clock be that of all threads."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock
