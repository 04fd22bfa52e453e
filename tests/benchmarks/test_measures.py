"""Each benchmark measures what it says, at its smallest."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from benchmarks import enqueue, hot, latency, load, profile
from benchmarks.adapters.catalogue import ALL, entries
from benchmarks.growth import main
from benchmarks.handlers import ADAPTERS, run
from benchmarks.harness.databases import Database
from benchmarks.profile import stages
from benchmarks.profile.stages import DRIVER, OUR_CODE, STAGES

pytestmark = [pytest.mark.usefixtures("forked_hosts"), pytest.mark.by_turns(*ALL)]

TINY = {
    "done": (30, 1_500),
    "backlog": (20, 40),
    "batch": 5,
    "claims": 2,
    "drained": 100,
    "workers": 1,
    "rounds": 1,
    "produced": 20,
    "producers": 1,
    "consumers": 2,
    "crowd_batches": (10,),
}


def test_all_of_growth_is_measured(database: Database) -> None:
    found = main.measure(database, **TINY)

    assert len(found["done"]) == len(found["backlog"]) == 2 * 2 * 2  # sizes, snapshots, kinds
    assert [len(course["rates"]) for course in found["courses"]] == [10, 10]
    assert {crowd["way"]: crowd["jobs"] for crowd in found["crowds"]} == {"verbs": 20, "Worker": 20}
    assert all(crowd["surfaced"] == {} for crowd in found["crowds"] if crowd["way"] == "Worker")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"drained": 40}, "at least 50 jobs"),
        ({"backlog": (9,)}, "at least 10 jobs"),
        ({"done": (2, 1)}, "from small to large"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        main.measure(Database("sqlite", "sqlite://"), **{**TINY, **wrong})


def test_the_workers_run_every_job(database: Database) -> None:
    for entry in entries(database.name, ADAPTERS, peers=False)[1:]:
        ran = run(entry, database, "even", 30)

        assert 0 < ran["busy"] <= 1


@pytest.mark.parametrize("kind", hot.TABLES)
def test_each_way_drains_the_queue(
    database: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "PROCESSES", 2)
    ways = tuple(hot.WAYS)

    found = hot.main.measure(
        database, connections=(4,), batch=(2,), turns=20, ways=ways, kinds=(kind,)
    )["results"]

    assert [(row["way"], row["connections"]) for row in found] == [(way, 4) for way in ways]
    assert {row["jobs"] for row in found} == {40}
    assert all(row["surfaced"] == {} and row["short"] == 0 for row in found)
    assert len(hot.tables({"results": found}).splitlines()) == 2 + len(found)


def test_a_claim_is_short_if_it_gets_less_than_a_batch_while_a_batch_is_ready() -> None:
    full, short = (0.0, 1.0, 10), (2.0, 3.0, 4)

    assert hot.short_claims([full, short], batch=10, jobs=30) == 1
    assert hot.short_claims([full, (2.0, 3.0, 10)], batch=10, jobs=30) == 0


def test_each_way_from_a_commit_to_a_handler_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "MARGIN", 1.5)
    monkeypatch.setattr(latency, "COUNTED", 0.2)
    monkeypatch.setattr(latency, "IDLE", (10, 20))
    monkeypatch.setattr(latency, "WARM_UP", 1)
    database = Database("sqlite", f"sqlite:///{tmp_path}/queue.db")

    figures = latency.main.measure(database, jobs=3, quiet=0, herd=2, peers=False, chosen=())

    assert [row["way"] for row in figures["results"]] == ["Worker", "AsyncWorker"]
    for row in figures["results"]:
        assert 0 < row["p50"] <= row["p99"]
        assert 0 < row["busy_p50"] <= row["busy_p99"]
        assert row["cpu"] > 0
    assert [line["what"] for line in figures["crowds"]] == [
        "statements of 2 idle workers in a second",
        "the same, in the second of a job's COMMIT",
    ]
    assert "AsyncWorker" in latency.tables(figures)


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


def test_every_way_to_insert_is_compared_with_its_twin(database: Database) -> None:
    found = enqueue.main.measure(database, rows=30, rounds=1)

    results = found["results"]
    assert [row["way"] for row in results] == list(enqueue.WAYS)
    assert [row["ratio"] for row in results if row["way"] == row["twin"]] == [1.0, 1.0]
    assert "| enqueue(Job) |" in enqueue.tables(found)


def test_every_way_to_load_is_compared_with_one_plain_insert(database: Database) -> None:
    found = load.main.measure(database, rows=30, rounds=1)

    assert [row["way"] for row in found["results"]][:3] == list(load.WAYS)
    assert {row["twin"] for row in found["results"]} == {load.PLAIN}
    assert "| load, DatabaseLog |" in load.tables(found)
