"""Handlers that sleep: the share of slots that are busy."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from benchmarks.adapters.catalogue import entries
from benchmarks.handlers import ADAPTERS, run
from benchmarks.harness.databases import Database


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.by_turns("sqlite", "mysql")
def test_the_workers_run_every_job(fresh_database: URL, db_alias: str, tmp_path: Path) -> None:
    database = Database(db_alias, fresh_database.render_as_string(hide_password=False))

    for entry in entries(db_alias, ADAPTERS, peers=False)[1:]:
        ran = run(entry, database, "even", 30)

        assert 0 < ran["busy"] <= 1
