"""Workers, async workers and producers under faults: nothing is lost, and nothing is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.servers.given import REPOSITORY

#: How long the processes are at it: in CI size, and with --full.
SECONDS = {False: 6, True: 60}

SEED = 20261122


@pytest.mark.load
@pytest.mark.timeout(300)
def test_whatever_is_done_to_processes_and_server_the_queue_loses_nothing(
    db_alias: str, full: bool
) -> None:
    options = ("--database", db_alias, "--seconds", str(SECONDS[full]), "--seed", str(SEED))

    # A process of its own: the run starts a server, and kills it.
    done = subprocess.run(
        (sys.executable, "-m", "tests.chaos", *options),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "faults done" in done.stdout
