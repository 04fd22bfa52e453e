"""An engine with empty tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue.bulk import FileLog
from tests.support import make_engine, with_empty_tables

from .models import Base


@pytest.fixture(scope="session")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables, for the whole run."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with empty tables."""
    return with_empty_tables(shared_engine, Base.metadata)


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog(tmp_path / "log")
