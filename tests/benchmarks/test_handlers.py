"""Handlers that sleep: the share of slots that are busy."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from benchmarks.adapters.catalogue import entries
from benchmarks.adapters.naps import seconds_of
from benchmarks.handlers import ADAPTERS, run, share_busy
from benchmarks.harness.databases import Database


def test_the_share_counts_until_the_last_job_begins() -> None:
    naps = [(0.0, 1.0), (0.0, 5.0), (1.5, 2.0), (2.0, 9.0)]

    assert share_busy(naps, slots=2) == (1 + 2 + 0.5) / 4


def test_of_mixed_handlers_one_in_fifty_is_long() -> None:
    naps = [seconds_of("mixed", number) for number in range(1, 101)]

    assert (naps.count(2.0), naps.count(0.02)) == (2, 98)
    assert {seconds_of("even", number) for number in range(1, 101)} == {0.02}


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.by_turns("sqlite", "mysql")
def test_the_workers_run_every_job(fresh_database: URL, db_alias: str, tmp_path: Path) -> None:
    database = Database(db_alias, fresh_database.render_as_string(hide_password=False))

    for entry in entries(db_alias, ADAPTERS, peers=False)[1:]:
        ran = run(entry, database, "even", 30)

        assert 0 < ran["busy"] <= 1
