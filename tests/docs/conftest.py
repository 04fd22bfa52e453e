"""What the pages leave out: imports, a base, an engine, a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import URL, Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import sa_jobqueue
from sa_jobqueue import migration
from tests.support import make_engine


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    yield engine
    engine.dispose()


@pytest.fixture
def taken_for_granted(engine: Engine) -> dict[str, Any]:
    """Give what pages leave out: imports, a base, a session."""

    class Base(DeclarativeBase):
        pass

    return {
        **vars(sqlalchemy),
        **vars(sa_jobqueue),
        **vars(migration),
        "Base": Base,
        "Mapped": Mapped,
        "mapped_column": mapped_column,
        "engine": engine,
        "Session": sessionmaker(engine, expire_on_commit=False),
    }
