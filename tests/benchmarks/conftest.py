"""Benchmarks at their smallest."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from benchmarks.harness import processes
from benchmarks.harness.databases import Database

from .forked import ForkedHost


@pytest.fixture
def forked_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes of adapters begin quickly; other tests start them as a user does."""
    monkeypatch.setattr(processes, "Host", ForkedHost)


@pytest.fixture
def database(fresh_database: URL, db_alias: str) -> Database:
    """Give a new and empty database."""
    return Database(db_alias, fresh_database.render_as_string(hide_password=False))
