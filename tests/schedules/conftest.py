"""A queue with schedules, on each database."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from sqlalchemy import Engine

# Fixtures: pytest finds them by their names here.
from tests.contract.conftest import new_session, session, shared_engine
from tests.support import with_empty_tables

from .models import Base, forget

__all__ = ["new_session", "session", "shared_engine"]

# The extra may be missing on a developer's machine, never in CI.
collect_ignore_glob = ["test_*.py"] if not find_spec("cronsim") and "CI" not in os.environ else []


@pytest.fixture(autouse=True)
def no_queues_of_other_tests() -> None:
    forget()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    return with_empty_tables(shared_engine, Base.metadata)
