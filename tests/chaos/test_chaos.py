"""Workers, async workers and producers under faults: nothing is lost, and nothing is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.chaos.clock import library
from tests.chaos.link import require_ip
from tests.contract.worker.fault_injection import AFTER_COMMIT, KILLED
from tests.servers import DATABASES
from tests.servers.errors import NotHere
from tests.servers.given import REPOSITORY

#: How long a run takes: in CI, and with --full.
SECONDS = {False: "30", True: "60"}

#: In CI size players and faults leave the processor to other tests; with --full they do not.
CALM = ("--rest", "20", "--every", "3")

SEED = "20261122"

Runs = dict[str, Future[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, full: bool) -> Iterator[Runs]:
    """The runs on all databases that are tested, at once, since they mostly wait."""
    names = {item.name for item in request.session.items if item.path == request.path}
    tested = [alias for alias in DATABASES if any(f"[{alias}]" in name for name in names)]
    for needed in (library, require_ip):  # by one process: apt refuses to install for two at once
        with suppress(NotHere):
            needed()
    options = ("--seconds", SECONDS[full], "--seed", SEED, *(() if full else CALM))
    with ThreadPoolExecutor(len(tested)) as threads:
        yield {alias: threads.submit(run, "--database", alias, *options) for alias in tested}


def counts_of(printed: str) -> dict[str, int]:
    """Read the counts that a run has printed, by name."""
    lines = (line.strip().partition("  ") for line in printed.splitlines())
    found = {name: count.replace(",", "") for count, _, name in lines}
    return {name: int(count) for name, count in found.items() if count.isdigit()}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: the run starts a server, and kills it.
    return subprocess.run(
        (sys.executable, "-m", "tests.chaos", *options),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.load
@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("chaos")
def test_whatever_is_done_to_processes_and_server_the_queue_loses_nothing(
    db_alias: str, runs: Runs
) -> None:
    done = runs[db_alias].result()

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    counts = counts_of(done.stdout)
    assert counts["bookings with exactly one entry, unless named below"] > 0
    assert counts["reports that ran once, unless named below"] > 0
    assert counts[f"faults done by a worker: {KILLED} {AFTER_COMMIT}"] > 0
