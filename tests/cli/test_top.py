"""``status`` of several queues, and ``top``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import Owner
from sa_jobqueue.cli.see import picture
from sa_jobqueue.control import WorkerInfo, pause, register_worker
from sa_jobqueue.counts import Count, QueueStats, overview
from sa_jobqueue.owners.alive import OwnerState

from .conftest import Run, add, plain
from .depot import TABLES, Crate

DEPOT, CRATES = "tests.cli.depot", "tests.cli.depot:crates"


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    """Two due crates, one failed crate, and a pause."""
    add(engine, Crate(), Crate(kind="barrel"), Crate(status="failed"))
    with Session(engine) as session, session.begin():
        pause(session, Crate)


@pytest.mark.usefixtures("jobs")
def test_status_of_a_module_shows_each_of_its_queues(run: Run, url: str) -> None:
    lines = run("status", DEPOT, "--url", url).stdout.splitlines()

    words = [line.split() for line in lines]
    assert words[0][:4] == ["queue", "due", "oldest", "next"]
    assert [line[:2] for line in words[1:4]] == [
        ["crates", "2"],
        ["barrels", "1"],
        ["shelves", "0"],
    ]
    assert lines[1].endswith("0 paused ")
    assert "not indexed" in lines[3]


@pytest.mark.usefixtures("jobs")
def test_status_of_a_queue_counts_its_own_jobs_by_status_and_says_that_it_is_paused(
    run: Run, url: str
) -> None:
    crates = plain(run("status", CRATES, "--url", url).stdout)
    barrels = plain(run("status", "tests.cli.depot:barrels", "--url", url).stdout)
    shelves = run("status", "tests.cli.depot:shelves", "--url", url).stdout

    assert ("unclaimed 2" in crates, "failed 1" in crates) == (True, True)
    assert ("unclaimed 1" in barrels, "failed 0" in barrels) == (True, True)
    assert ("crate is paused since" in crates, "paused" in shelves) == (True, False)


@pytest.mark.usefixtures("jobs")
def test_status_as_json_has_numbers_ages_and_workers(run: Run, url: str, engine: Engine) -> None:
    with Owner(engine, "packer") as owner:
        with Session(engine) as session, session.begin():
            register_worker(session, owner.name, [Crate], tables=TABLES)
        shown = run("status", CRATES, "tests.cli.depot:shelves", "--url", url, "--json").stdout

    crates, shelves = json.loads(shown)
    assert (crates["target"], crates["queue"]) == (CRATES, "crate")
    assert crates["due"] == {"number": 2, "more": False}
    assert crates["failed"] == {"number": 1, "more": False}
    assert crates["oldest_seconds"] >= 0
    assert crates["workers"]["alive"] == 1
    assert crates["paused"].endswith("+00:00")
    assert (shelves["failed"], shelves["finished_per_second"]) == (None, None)


@pytest.mark.usefixtures("jobs")
def test_top_draws_tables_until_a_signal_and_asks_again_if_the_database_goes_away(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def ask(session: Session, queues: Iterable[Any]) -> list[QueueStats]:
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("SELECT", {}, Exception("the server is gone"))
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return overview(session, queues)

    monkeypatch.setattr(sys.modules["sa_jobqueue.cli.see"], "overview", ask)
    monkeypatch.setenv("FORCE_COLOR", "1")

    shown = run("top", DEPOT, "--url", url, "--every", 0.01)

    assert (shown.exit_code, len(asked)) == (0, 3)
    assert "the server is gone" in shown.stdout
    assert "crates" in shown.stdout


HOUR = timedelta(hours=1)
DEAD = WorkerInfo("w", "h", 1, ("q",), datetime.now(UTC), datetime.now(UTC), 0, OwnerState.DEAD)

#: A queue whose every number is long.
LONG = QueueStats(
    name="q",
    due=Count(10_000, more=True),
    oldest=412 * 24 * HOUR + 23 * HOUR,
    next_due=None,
    claimed=Count(10_000, more=True),
    failed=Count(10_000, more=True),
    cancelled=None,
    rate=1234.5,
    paused=datetime.now(UTC),
    workers=(DEAD,) * 12,
)


def drawn(queues: dict[str, QueueStats], error: OperationalError | None = None) -> list[str]:
    console = Console(file=StringIO(), width=80, force_terminal=False)
    console.print(picture(queues, "postgresql://" + "x" * 90, error))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_the_picture_fits_into_80_columns_with_all_numbers_whole() -> None:
    next_due = datetime.now(UTC) + 23 * HOUR + timedelta(minutes=59)
    lines = drawn({"shop.queues:newsletters_of_the_month": replace(LONG, next_due=next_due)})

    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    for whole in ("10,000+", "412d 23h", "23h 5", "1,234", "12 dead paused"):
        assert whole in lines[2]
    assert lines[2].startswith("newslet")


def test_the_picture_shows_the_last_numbers_beside_an_error() -> None:
    lines = drawn({"shop:a": LONG}, OperationalError("SELECT", {}, Exception("gone [red]")))

    assert "10,000+" in lines[2]
    assert lines[3] == "not read, tried again: gone [red]"
