"""A queue with schedules, on each database."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from tests.support import make_engine, with_empty_tables

from .models import Base

# The extra may be missing on a developer's machine, never in CI.
collect_ignore_glob = ["test_*.py"] if not find_spec("cronsim") and "CI" not in os.environ else []


@pytest.fixture(autouse=True)
def no_queues_of_other_tests() -> None:
    gc.collect()  # a queue declares as long as it is there


@pytest.fixture(scope="module")
def kept_engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def engine(kept_engine: Engine) -> Engine:
    return with_empty_tables(kept_engine, Base.metadata)


@pytest.fixture
def new_session(engine: Engine) -> Iterator[Callable[[], Session]]:
    opened: list[Session] = []

    def open_session() -> Session:
        opened.append(Session(engine, expire_on_commit=False))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def session(new_session: Callable[[], Session]) -> Session:
    return new_session()
