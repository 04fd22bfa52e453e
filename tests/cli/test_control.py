"""``pause``, ``resume``, ``workers``, ``request-stop`` and ``schedules``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sqlalchemy import Engine, func, update
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim, utc_now
from sa_jobqueue.control import paused, register_worker

from .conftest import Run, add, read
from .depot import SCHEDULES, TABLES, Crate, crates
from .shop import Message

CRATES, MESSAGES = "tests.cli.depot:crates", "tests.cli.shop:Message"

pytestmark = pytest.mark.usefixtures("tables")


def pauses(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return [found.queue for found in paused(session, tables=TABLES)]


def test_pause_and_resume_commit_and_tell_what_was(run: Run, url: str, engine: Engine) -> None:
    options = (CRATES, "tests.cli.depot:shelves", "--url", url, "--yes")

    assert run("pause", *options).stdout == "crate is paused\nshelf is paused\n"
    assert pauses(engine) == ["crate", "shelf"]
    assert run("pause", *options).stdout.startswith("crate was paused already\n")

    assert run("resume", *options).stdout == "crate is resumed\nshelf is resumed\n"
    assert pauses(engine) == []
    assert run("resume", *options).stdout == "crate was not paused\nshelf was not paused\n"


def test_pause_and_resume_say_whom_they_concern_and_ask(run: Run, url: str, engine: Engine) -> None:
    with Owner(engine, "mailer") as owner, Session(engine) as session:
        for name in (owner.name, "plain"):
            register_worker(session, name, [Crate], tables=TABLES)
        session.commit()

        refused = run("pause", CRATES, "--url", url, answer="n\n")
        nobody = run("pause", CRATES, "--url", url)
        untouched = pauses(engine)
        agreed = run("pause", CRATES, "--url", url, answer="y\n")
    kept = run("resume", CRATES, "--url", url, answer="n\n")

    asked = "1 live worker and 1 of unknown state will claim no more of its jobs. Go on?"
    assert refused.stderr.startswith(f"About to pause crate: {asked}")
    assert (refused.exit_code, nobody.exit_code, untouched) == (1, 1, [])
    assert (agreed.exit_code, agreed.stdout) == (0, "crate is paused\n")
    asked = "0 live workers and 1 of unknown state will claim its jobs again. Go on?"
    assert kept.stderr.startswith(f"About to resume crate: {asked}")
    assert (kept.exit_code, pauses(engine)) == (1, ["crate"])


def test_workers_shows_who_is_alive_and_what_is_paused(run: Run, url: str, engine: Engine) -> None:
    with Owner(engine, "mailer") as owner:
        with Session(engine) as session, session.begin():
            register_worker(session, owner.name, [Crate], jobs=2, tables=TABLES)
        run("pause", CRATES, "--url", url, "--yes")

        living = json.loads(run("workers", "tests.cli.depot", "--url", url, "--json").stdout)
        name = owner.name
    dead = run("workers", CRATES, "--url", url).stdout

    assert {"seen (UTC)", "dead", "crate is paused since"} == {
        word for word in ("seen (UTC)", "dead", "crate is paused since") if word in dead
    }
    (worker,) = living["workers"]
    assert (worker["name"], worker["state"], worker["jobs"]) == (name, "alive", 2)
    assert worker["queues"] == ["crate"]
    assert [pause["queue"] for pause in living["paused"]] == ["crate"]


@pytest.mark.parametrize(
    ("command", "table", "said"),
    [
        (("pause", CRATES, "--yes"), TABLES.pauses, "there is no table 'depot_pauses'"),
        (("workers", CRATES), TABLES.workers, "there is no table 'depot_workers'"),
        (("request-stop", CRATES, 1, "--yes"), TABLES.stops, "there is no table 'depot_stops'"),
        (("pause", MESSAGES), None, "control_tables(metadata)"),
        (("workers", MESSAGES), None, "control_tables(metadata)"),
        (("request-stop", MESSAGES, 1, "--yes"), None, "control_tables(metadata)"),
        (("schedules", CRATES, "--run", "weekly", "--yes"), None, "there is no schedule 'weekly'"),
        (("schedules", MESSAGES), None, "Schedules(metadata)"),
    ],
)
def test_without_its_tables_a_command_names_the_way_out(
    run: Run, url: str, engine: Engine, command: tuple[object, ...], table: Any, said: str
) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Crate(id=1, status="claimed", owner="w"), Message(recipient="a")])
        session.flush()
        session.execute(update(Crate).values(owner_date=utc_now()))
        session.execute(update(Message).values(status="claimed", owner="w", owner_date=utc_now()))
    if table is not None:
        table.drop(engine)

    told = run(*command, "--url", url)

    assert said in told.stderr
    assert (told.exit_code, len(told.stderr.splitlines())) == (1, 1)


@pytest.fixture
def claimed_and_not(engine: Engine, tables: None) -> None:
    """Insert crates, of which 1 and 2 are claimed, and 3 is not."""
    add(engine, Crate(id=1), Crate(id=2), Crate(id=3))
    with Session(engine) as session, session.begin():
        claim(session, Crate, Crate.id < 3, owner="w", limit=2)


@pytest.mark.usefixtures("claimed_and_not")
def test_request_stop_asks_for_claimed_jobs_and_tells_which_were_left_alone(
    run: Run, url: str, engine: Engine
) -> None:
    refused = run("request-stop", CRATES, 1, 2, "--url", url, answer="n\n")
    told = run("request-stop", CRATES, 1, 3, 4, "--url", url, "--yes")

    assert refused.stderr.startswith("About to ask the workers to stop 2 jobs of crate: 1, 2. Go")
    assert told.stdout.splitlines() == [
        "request-stop: 1 job",
        "left alone, for their status or queue is another: 3, 4",
    ]
    assert read(engine, TABLES.stops.c.job_key) == ["[1]"]


@pytest.fixture
def nightly(engine: Engine, tables: None) -> None:
    pytest.importorskip("cronsim")
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "nightly", crates, "0 3 * * *", timezone="Europe/Berlin")


@pytest.mark.usefixtures("nightly")
def test_schedules_are_listed_paused_resumed_and_run_now(
    run: Run, url: str, engine: Engine
) -> None:
    (listed,) = json.loads(run("schedules", CRATES, "--url", url, "--json").stdout)
    assert (listed["name"], listed["cron"], listed["paused"]) == ("nightly", "0 3 * * *", False)
    assert re.match(r"\d{4}-\d\d-\d\dT", listed["next_tick"])
    options = ("schedules", "tests.cli.depot", "--url", url, "--yes", "--json")

    for option, asked in (
        ("--pause", "pause the schedule nightly: it will insert no jobs"),
        ("--resume", "resume the schedule nightly: it will insert jobs again"),
        ("--run", "insert a job of the schedule nightly into crate"),
    ):
        refused = run("schedules", CRATES, "--url", url, option, "nightly")
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"About to {asked}. Go on?")
    assert read(engine, func.count(Crate.id)) == [0]
    resumed = run(*options, "--resume", "nightly")
    paused = run(*options, "--pause", "nightly")
    again = run(*options, "--pause", "nightly")
    run(*options, "--run", "nightly")

    assert resumed.stderr == "the schedule nightly was not paused: nothing has changed\n"
    assert paused.stderr == ""
    assert json.loads(paused.stdout)[0]["paused"] is True
    assert again.stderr == "the schedule nightly was paused already: nothing has changed\n"
    assert read(engine, func.count(Crate.id)) == [1]


@pytest.mark.usefixtures("nightly")
def test_times_are_in_utc_and_a_strangers_text_is_printed_as_it_is(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "digest [/b]", crates, "0 3 * * *")
        error = "refused [red]\n[SQL: INSERT INTO crate]"
        gap = {"skipped_from": utc_now(), "skipped_to": utc_now(), "last_error": error}
        session.execute(update(SCHEDULES.entity).values(gap))

    listed = run("schedules", CRATES, "--url", url).stdout

    for text in ("next (UTC)", "last (UTC)", "digest [/b]", "failed: refused [red]"):
        assert text in listed
    assert re.search(r"missed .+ until .+:\d\d UTC", listed)
    assert "SQL" not in listed
