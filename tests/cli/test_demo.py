"""``demo`` with its producers and consumers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, inspect, text

from .conftest import Start, finished

#: Each process takes a second of a core to start.
SMALL = ("--producers", 1, "--consumers", 2)
TABLES = JOBS, LOG = ["sa_jobqueue_demo", "sa_jobqueue_demo_finished"]
COUNTS = r"inserted ([\d,]+), done ([\d,]+), rows in the log ([\d,]+), different ([\d,]+)$"
PROOF = f"^PROOF: each row was finished once: {COUNTS}"


@pytest.mark.by_turns("postgresql", "mysql", "mariadb")
def test_the_demo_proves_that_each_row_was_finished_once(start: Start, fresh_database: URL) -> None:
    url = fresh_database.render_as_string(hide_password=False)

    code, output, errors = finished(start("demo", "--url", url, "--seconds", 2, *SMALL))

    assert (code, errors) == (0, "")
    assert "running: unclaimed" in output
    assert proven(output) > 0


def test_the_demo_needs_no_url_and_drops_no_table_of_a_user(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "sqlite:///of_the_shop.db")  # it drops tables: not here

    own = create_engine("sqlite:///sa_jobqueue.db")
    with own.begin() as connection:
        connection.execute(text("CREATE TABLE record (artist TEXT)"))

    code, output, errors = finished(start("demo", "--seconds", 1, *SMALL))

    assert (code, errors) == (0, "")
    assert inspect(own).get_table_names() == ["record", *TABLES]
    own.dispose()
    assert "database: sqlite:///sa_jobqueue.db" in output
    assert proven(output) > 0
    assert [path.name for path in folder.glob("*.db")] == ["sa_jobqueue.db"]


def test_the_proof_believes_only_the_database(start: Start, url: str, engine: Engine) -> None:
    demo = start("demo", "--url", url, "--seconds", 100, *SMALL)
    read_until(demo, "done [1-9]")

    with engine.begin() as connection:
        for harm in (
            f"{LOG} (record_id) SELECT min(record_id) FROM {LOG}",
            f"{LOG} (record_id) VALUES (-2)",
            f"{JOBS} (status) VALUES ('claimed')",  # a finish makes up for it
        ):
            connection.execute(text(f"INSERT INTO {harm}"))
    demo.send_signal(signal.SIGINT)

    code, output, errors = finished(demo)
    assert (code, "PROOF:" in output) == (1, False)
    found = re.search(f"PROOF FAILED: {COUNTS}", errors)
    assert found, errors
    inserted, done, logged, different = (int(each.replace(",", "")) for each in found.groups())
    assert (inserted, logged, different) == (done + 1, done + 2, done)


@pytest.mark.parametrize(("index", "role"), [(0, "produce"), (-1, "consume")])
def test_a_killed_process_fails_loudly(start: Start, url: str, index: int, role: str) -> None:
    demo = start("demo", "--url", url, "--seconds", 100, *SMALL)
    read_until(demo, "running")

    os.kill(sorted(children_of(demo))[index], signal.SIGKILL)

    code, _, errors = finished(demo)
    assert (code, errors) == (1, f"Error: {role} has ended with exit code -9\n")


def test_nobody_outlives_a_killed_parent(start: Start, url: str) -> None:
    demo = start("demo", "--url", url, "--seconds", 32, *SMALL)
    read_until(demo, "running")

    demo.kill()

    demo.communicate(timeout=25)  # until nobody has its output any more


def proven(output: str) -> int:
    """Return how many rows the proof tells of."""
    found = re.search(PROOF, output, re.M)
    assert found, output
    return int(found[1].replace(",", ""))


def read_until(process: subprocess.Popen[str], pattern: str) -> None:
    """Read the output up to a line with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(pattern, line):
            return
    raise AssertionError(f"{pattern!r} was never printed")


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of the producers and consumers, in the order of their starts."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")  # of each of its threads
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
