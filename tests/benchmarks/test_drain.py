"""A drain is timed, and every job is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.adapters.adapter import Adapter
from benchmarks.adapters.catalogue import entries
from benchmarks.drain import drain
from benchmarks.harness import processes
from benchmarks.harness.databases import Database
from benchmarks.harness.processes import HostFailed, JobsLost
from benchmarks.harness.report import Row

from .fakes import Breaking, Leaving, Losing, Repeating, fake
from .switching import switching_hosts


def drained(adapter: type[Adapter], folder: Path) -> Row:
    return drain(fake(adapter), Database("folder", str(folder)), batch=1, workers=2, jobs=30)


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (Losing, "0 were run twice, 1 never, 0 are left"),
        (Leaving, "0 were run twice, 1 never, 1 are left"),
        (Repeating, "1 were run twice, 0 never, 0 are left"),
    ],
)
def test_a_queue_that_does_not_run_each_job_once_is_detected(
    adapter: type[Adapter], message: str, tmp_path: Path
) -> None:
    with pytest.raises(JobsLost, match=f"of 30 jobs {message}"):
        drained(adapter, tmp_path)


def test_a_worker_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostFailed, match="exit code 3"):
        drained(Breaking, tmp_path)


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.by_turns("sqlite", "mysql", "mariadb")
def test_every_adapter_of_ours_and_of_sql_runs_each_job_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with switching_hosts(3, database.url, 20) as switched:
        monkeypatch.setattr(processes, "hosts", switched)
        for entry in entries(database.name, peers=False):
            done = drain(entry, database, batch=20, workers=2, jobs=100)

            assert done["adapter"] == entry.name
            assert done["seconds"] > 0
