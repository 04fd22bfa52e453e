"""The time from a commit to a handler, measured at its smallest."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import latency
from benchmarks.harness.databases import Database


@pytest.mark.usefixtures("forked_hosts")
def test_each_way_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
