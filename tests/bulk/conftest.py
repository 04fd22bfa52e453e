"""An engine with empty tables, and logs of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from sa_jobqueue.bulk import DatabaseLog, FileLog, Log
from tests import models

# A fixture: pytest finds it by its name here.
from tests.contract.conftest import shared_engine
from tests.support import with_empty_tables

from .models import Base

__all__ = ["shared_engine"]


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with empty tables."""
    with_empty_tables(shared_engine, models.Base.metadata)
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
