"""``status`` of several queues, and ``top``."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import Owner
from sa_jobqueue.control import pause, register_worker

from .conftest import Shell, Start, add, plain
from .depot import TABLES, Crate

DEPOT, CRATES = "tests.cli.depot", "tests.cli.depot:crates"


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    """Two due crates, one failed crate, and a pause."""
    add(engine, Crate(), Crate(kind="barrel"), Crate(status="failed"))
    with Session(engine) as session, session.begin():
        pause(session, Crate)


@pytest.mark.usefixtures("jobs")
def test_status_of_a_module_shows_each_of_its_queues(shell: Shell) -> None:
    lines = shell("status", DEPOT).stdout.splitlines()

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
    shell: Shell,
) -> None:
    crates, barrels, shelves = (
        plain(shell("status", f"{DEPOT}:{name}").stdout)
        for name in ("crates", "barrels", "shelves")
    )

    assert ("unclaimed 2" in crates, "failed 1" in crates) == (True, True)
    assert ("unclaimed 1" in barrels, "failed 0" in barrels) == (True, True)
    assert ("crate is paused since" in crates, "paused" in shelves) == (True, False)


@pytest.mark.usefixtures("jobs")
def test_status_as_json_has_numbers_ages_and_workers(shell: Shell) -> None:
    with Owner(shell.engine, "packer") as owner:
        with shell.session() as session:
            register_worker(session, owner.name, [Crate], tables=TABLES)
        shown = shell("status", CRATES, "tests.cli.depot:shelves", "--json").stdout

    crates, shelves = json.loads(shown)
    assert (crates["target"], crates["queue"]) == (CRATES, "crate")
    assert crates["due"] == {"number": 2, "more": False}
    assert crates["failed"] == {"number": 1, "more": False}
    assert crates["oldest_seconds"] >= 0
    assert crates["workers"]["alive"] == 1
    assert crates["paused"].endswith("+00:00")
    assert (shelves["failed"], shelves["finished_per_second"]) == (None, None)


@pytest.mark.usefixtures("jobs")
def test_status_fits_into_80_columns_with_all_numbers_whole(shell: Shell) -> None:
    now = datetime.now(UTC)
    kinds = [
        {"status": "unclaimed", "run_at": now - timedelta(days=412, hours=23, minutes=30)},
        {"status": "claimed", "owner": "w", "owner_date": now},
        {"status": "failed", "owner_date": now},
    ]
    with shell.session() as session:
        for values in kinds:
            session.execute(insert(Crate), [values] * 10_001)
        session.add(Crate(run_at=now + timedelta(hours=23, minutes=59)))
        with Owner(shell.engine, "packer") as owner:
            name = owner.name
        register_worker(session, name, [Crate], tables=TABLES)

    shown = shell("status", "tests.cli.depot:a_queue_with_quite_a_long_name", DEPOT)

    line = shown.stdout.splitlines()[1]
    assert len(line) <= 80
    assert line.count("10,000+") == 3
    for whole in ("412d 23h", "23h 5", "1 dead paused"):
        assert whole in line
    assert line.startswith("a_queue")


@pytest.mark.usefixtures("jobs")
def test_top_draws_tables_until_a_signal_and_asks_again_if_the_database_goes_away(
    start: Start, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    top = start("top", DEPOT, "--url", url, "--every", 0.1)

    def wait_for(said: str) -> str:
        return next(line for line in top.stdout or () if said in line)

    wait_for("crates")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE crate RENAME TO elsewhere"))
    assert "no such table: crate" in wait_for("not read, tried again")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO crate"))
    wait_for("crates")
    top.send_signal(signal.SIGTERM)

    assert top.wait(20) == 0
