"""CPU time by adapter and by stage; and the price of an insert."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from benchmarks import enqueue, load, profile
from benchmarks.harness.databases import Database
from benchmarks.profile import stages
from benchmarks.profile.stages import DRIVER, OUR_CODE, STAGES


@pytest.fixture
def database(fresh_database: URL, db_alias: str) -> Database:
    """Give a new and empty database."""
    return Database(db_alias, fresh_database.render_as_string(hide_password=False))


@pytest.mark.by_turns("sqlite", "mysql")
def test_every_adapter_and_every_stage_is_profiled(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "WARM_UP", 1)
    monkeypatch.setattr(stages, "CALIBRATION", 1_000)
    adapters = (*profile.PROFILED, *profile.MORE)

    found = profile.main.measure(database, batch=(3,), calls=5, rounds=1, adapter=adapters)

    assert [row["adapter"] for row in found["steps"]] == list(adapters)
    assert all(row["all"] > 0 for row in found["steps"])
    assert all(row.keys() > set(STAGES) for row in found["stages"])
    assert all(row[DRIVER] > 0 and row[OUR_CODE] > 0 for row in found["stages"])
    assert "| sql, core | 3 |" in profile.tables(found)


@pytest.mark.by_turns("sqlite", "mysql")
def test_every_way_to_insert_is_compared_with_its_twin(database: Database) -> None:
    found = enqueue.main.measure(database, rows=30, rounds=1)

    results = found["results"]
    assert [row["way"] for row in results] == list(enqueue.WAYS)
    assert [row["ratio"] for row in results if row["way"] == row["twin"]] == [1.0, 1.0]
    assert "| enqueue(Job) |" in enqueue.tables(found)


@pytest.mark.by_turns("sqlite", "mysql")
def test_every_way_to_load_is_compared_with_one_plain_insert(database: Database) -> None:
    found = load.main.measure(database, rows=30, rounds=1)

    assert [row["way"] for row in found["results"]][:3] == list(load.WAYS)
    assert {row["twin"] for row in found["results"]} == {load.PLAIN}
    assert "| load, DatabaseLog |" in load.tables(found)
