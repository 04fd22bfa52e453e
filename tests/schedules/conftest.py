"""A queue with schedules, on each database."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from sqlalchemy import URL, Engine

# Fixtures: pytest finds them by their names here.
from tests.contract.conftest import new_session, session
from tests.support import make_engine, with_empty_tables

from .models import Base

__all__ = ["new_session", "session"]

# The extra may be missing on a developer's machine, never in CI.
collect_ignore_glob = ["test_*.py"] if not find_spec("cronsim") and "CI" not in os.environ else []


@pytest.fixture(autouse=True)
def no_queues_of_other_tests() -> None:
    gc.collect()  # a queue declares as long as it is there


@pytest.fixture(scope="module")
def kept_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(kept_engine: Engine) -> Engine:
    return with_empty_tables(kept_engine, Base.metadata)
