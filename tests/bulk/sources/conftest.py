"""A log that is not in the loaded database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine

from sa_jobqueue.bulk import DatabaseLog, FileLog, Log, load_tables


@pytest.fixture(params=["file", "database"])
def log_beside(request: pytest.FixtureRequest, log: FileLog, tmp_path: Path) -> Iterator[Log]:
    """A log that is not in the loaded database."""
    if request.param == "file":
        yield log
        return
    other = create_engine(f"sqlite:///{tmp_path / 'log.db'}")
    load_tables(MetaData()).create_all(other)
    yield DatabaseLog(other)
    other.dispose()
