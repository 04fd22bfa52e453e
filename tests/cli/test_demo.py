"""``demo`` with its producers and consumers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.support import SERVERS

from .conftest import Run, Start, finished

SMALL = ("--producers", 2, "--consumers", 3)
#: Each process takes a second of a core to start.
SMALLEST = ("--producers", 1, "--consumers", 1)


def test_the_demo_proves_that_each_row_was_finished_once(start: Start, fresh_database: URL) -> None:
    url = fresh_database.render_as_string(hide_password=False)

    code, output, errors = finished(start("demo", "--url", url, "--seconds", 2, *SMALL))

    assert "PROOF: inserted = finished" in output, errors
    assert code == 0
    assert inserted(output) > 0


@pytest.mark.only_on(*SERVERS)
@pytest.mark.by_turns(*SERVERS)
def test_lost_candidates_are_shown(start: Start, fresh_database: URL) -> None:
    url = fresh_database.render_as_string(hide_password=False)

    _, output, errors = finished(start("demo", "--url", url, "--seconds", 1, *SMALL))

    assert "strategy candidates" in output, errors
    candidates, lost = row_of("all", output)[-2:]
    assert int(candidates) > 0
    assert int(lost) >= 0


def test_the_demo_needs_no_url(start: Start, folder: Path) -> None:
    code, output, errors = finished(start("demo", "--seconds", 1, *SMALLEST))

    assert code == 0, errors
    assert f"database: sqlite:///{folder / 'sa_jobqueue.db'}" in output
    assert row_of("all", output)[-2:] == ["-", "-"]


@pytest.mark.parametrize("strategy", ["held", "advisory"])
def test_no_strategy_is_offered_that_its_consumers_cannot_use(run: Run, strategy: str) -> None:
    result = run("demo", "--strategy", strategy)

    assert result.exit_code == 2
    assert "Invalid value for '--strategy'" in result.output


def test_kept_rows_stay_as_done(start: Start, url: str) -> None:
    code, output, errors = finished(
        start("demo", "--url", url, "--seconds", 1, "--keep", *SMALLEST)
    )

    assert code == 0, errors
    _, shown, _ = finished(start("status", "--url", url))
    assert f"done {inserted(output)}" in plain(shown)


def test_batches_are_larger_after_a_pause_of_the_consumers(start: Start, url: str) -> None:
    # A batch has the rows of one random letter. Its size is left to chance, so three consumers
    # claim a first batch after the pause, and two producers fill it.
    demo = start("demo", "--url", url, "--seconds", 5, "--pause", 2, *SMALL)

    code, output, errors = finished(demo)

    assert code == 0, errors
    before, after = (float(found) for found in re.findall(r"the pause: +([\d.]+)", output))
    assert after > before


def test_ctrl_c_drains_and_proves(start: Start, url: str) -> None:
    demo = start("demo", "--url", url, "--seconds", 100, *SMALLEST)
    read_until(demo, "running")

    demo.send_signal(signal.SIGINT)

    code, output, errors = finished(demo)
    assert "PROOF: inserted = finished" in output, errors
    assert code == 0


def test_a_killed_consumer_fails_loudly(start: Start, url: str) -> None:
    demo = start("demo", "--url", url, "--seconds", 100, *SMALLEST)
    read_until(demo, "running")

    os.kill(workers_of(demo)[0], signal.SIGKILL)

    code, _, errors = finished(demo)
    assert code == 1
    assert re.search(r"^Error: (consumer|producer) \d crashed: killed by SIGKILL$", errors, re.M)


@pytest.mark.parametrize("pause", [0, 30])
def test_nobody_outlives_a_killed_parent(start: Start, url: str, pause: int) -> None:
    demo = start("demo", "--url", url, "--seconds", 32, "--pause", pause, *SMALL)
    read_until(demo, "consumers paused" if pause else "running")
    workers = workers_of(demo)

    demo.kill()

    assert len(workers) == 5
    assert all(ended(pid) for pid in workers)


def test_a_pause_must_be_shorter_than_the_run(start: Start, url: str) -> None:
    code, _, errors = finished(start("demo", "--url", url, "--seconds", 2, "--pause", 2))

    assert code == 2
    assert "--pause" in errors


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the output up to a line with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never printed")


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of the producers and consumers."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")  # of each of its threads
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def ended(pid: int) -> bool:
    """Wait until a process is gone, or nothing but its entry is left."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def plain(output: str) -> str:
    """Return the text of tables without their lines."""
    return re.sub(r"[^\w.,\n-]+", " ", output)


def row_of(name: str, output: str) -> list[str]:
    """Return the cells of a table's row."""
    found = re.search(rf"^│ {name} +│(.*)│$", output, re.M)
    assert found, output
    return [cell.strip().replace(",", "") for cell in found[1].split("│")]


def inserted(output: str) -> int:
    """Return how many rows the database says were inserted."""
    return int(row_of("inserted", output)[0])
