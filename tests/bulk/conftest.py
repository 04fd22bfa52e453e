"""An engine with empty tables, and logs of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue.bulk import DatabaseLog, FileLog, Log
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


@pytest.fixture(params=["file", "database"])
def new_log(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Callable[[], Log]:
    """Give the same log of each kind, as another process has it."""
    if request.param == "file":
        return lambda: FileLog(tmp_path / "log")
    return lambda: DatabaseLog(engine)
