"""Workers of an older version and of this one share the jobs of one table.

The older version's wheel is built from a commit of this repository.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.crash.any_version import Handled, Job, add_jobs
from tests.support import until

pytestmark = [pytest.mark.load, pytest.mark.timeout(300), pytest.mark.xdist_group("two versions")]

ROOT = Path(__file__).parents[2]

#: After a release: the tag of the last one. Until then, the commit after the core was redrawn.
OLDER = "a8ef3614"

#: What a wheel is built from.
SOURCES = ("sa_jobqueue", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

#: Seconds between the looks of a worker that needs no wake-up, and of one that needs it; no worker.
OFTEN, RARELY, NEVER = 0.05, 3600.0, 0.0

OTHER = {"older": "newer", "newer": "older"}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the older version's wheel, install it into a folder; return where each version is."""
    folder = tmp_path_factory.mktemp("older")
    archived = subprocess.run(
        ["git", "archive", "--prefix=older/", f"--output={folder}/older.zip", OLDER, *SOURCES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if archived.returncode:
        pytest.fail(
            f"the older version is built from commit {OLDER}, which git does not find here: run "
            f"this test in a whole clone (git fetch --unshallow). git said: {archived.stderr}"
        )
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    site = folder / "site"
    subprocess.run([*pip, "--no-deps", f"--target={site}", folder / "older.zip"], check=True)
    return {"older": site, "newer": ROOT}


class Started:
    """A worker of one of the versions, in a process of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "tests/crash/any_version.py", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.output: IO[str] = self.process.stdout

    def says(self) -> str:
        """Return the next line that it prints."""
        return self.output.readline().rstrip()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.output.close()


Start = Callable[..., Started]


@pytest.fixture
def start(engine: Engine, packages: dict[str, Path]) -> Iterator[Start]:
    """Start workers by the name of their version; they are killed when the test ends."""
    url = engine.url.render_as_string(hide_password=False)
    with ExitStack() as stack:

        def started(name: str, *, seconds: float = OFTEN, jobs: int = 0) -> Started:
            worker = Started(packages[name], url, name, str(seconds), str(jobs))
            stack.callback(worker.kill)
            assert worker.says() == str(packages[name] / "sa_jobqueue")
            return worker

        yield started


def rows(engine: Engine, *columns: Any) -> list[tuple[Any, ...]]:
    """Read columns of a table, in the order of the first one."""
    with Session(engine) as session:
        return [tuple(row) for row in session.execute(select(*columns).order_by(columns[0]))]


def until_done(engine: Engine, count: int) -> None:
    """Wait until so many jobs are done."""
    until(lambda: done_jobs(engine) == count, 60)


def done_jobs(engine: Engine) -> int:
    return [status for _, status in rows(engine, Job.id, Job.status)].count("done")


def handled(engine: Engine) -> list[tuple[Any, ...]]:
    """Return who did each job, at which attempt; see that each was done once."""
    found = rows(engine, Handled.job_id, Handled.name, Handled.attempt)
    assert [row[0] for row in found] == [job for (job,) in rows(engine, Job.id)]
    return [row[1:] for row in found]


def test_two_versions_share_jobs_retries_and_the_jobs_of_the_dead(
    engine: Engine, start: Start
) -> None:
    """The older version makes the tables."""
    workers = {"older": start("older")}
    for done, (victim, other) in zip((0, 11), OTHER.items(), strict=True):
        add_jobs(engine, 5, refused_by=victim)
        until(lambda: all(attempts for _, attempts in rows(engine, Job.id, Job.attempts)))
        add_jobs(engine, held_by=victim)
        assert workers[victim].says() == "holds"
        workers[other] = start(other)
        add_jobs(engine, 5, refused_by=other)
        until_done(engine, done + 10)
        time.sleep(1)  # in which the other one reaps, and finds the victim alive
        assert done_jobs(engine) == done + 10

        workers[victim].kill()

        until_done(engine, done + 11)
        ours = handled(engine)[done:]
        assert [name for name, _ in ours] == [other] * 6 + [victim] * 5
        assert all(attempt > 1 for _, attempt in ours[:6])


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("name", OTHER)
def test_a_version_wakes_workers_of_another(name: str, engine: Engine, start: Start) -> None:
    """A worker that hardly ever looks by itself does a job of the other version at once."""
    start(name, seconds=RARELY)
    add_jobs(engine)
    until_done(engine, 1)
    time.sleep(0.5)  # until it has looked again, found nothing, and waits

    start(OTHER[name], seconds=NEVER, jobs=1)

    until_done(engine, 2)
    assert [done_by for done_by, _ in handled(engine)] == [name, name]
