"""``pause``, ``resume``, ``workers``, ``request-stop`` and ``schedules``."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, update
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim, utc_now
from sa_jobqueue.control import paused, register_worker

from .conftest import Shell
from .depot import SCHEDULES, TABLES, Crate, crates

CRATES = "tests.cli.depot:crates"


def pauses(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return [found.queue for found in paused(session, tables=TABLES)]


def test_pause_and_resume_commit_and_tell_what_was(shell: Shell) -> None:
    options = (CRATES, "tests.cli.depot:shelves", "--yes")

    assert shell("pause", *options).stdout == "crates is paused\nshelves is paused\n"
    assert pauses(shell.engine) == ["crate", "shelf"]
    assert shell("pause", *options).stdout.startswith("crates was paused already\n")

    assert shell("resume", *options).stdout == "crates is resumed\nshelves is resumed\n"
    assert pauses(shell.engine) == []
    assert shell("resume", *options).stdout == "crates was not paused\nshelves was not paused\n"


def test_pause_and_resume_say_whom_they_concern_and_ask(shell: Shell) -> None:
    with Owner(shell.engine, "mailer") as owner, Session(shell.engine) as session:
        for name in (owner.name, "plain"):
            register_worker(session, name, [Crate], tables=TABLES)
        session.commit()

        refused = shell("pause", CRATES, answer="n\n")
        nobody = shell("pause", CRATES)
        untouched = pauses(shell.engine)
        agreed = shell("pause", CRATES, answer="y\n")
    kept = shell("resume", CRATES, answer="n\n")

    asked = "About to pause crates (workers: 1 alive, 1 unknown). Go on?"
    assert refused.stderr.startswith(asked)
    assert (refused.exit_code, nobody.exit_code, untouched) == (1, 1, [])
    assert (agreed.exit_code, agreed.stdout) == (0, "crates is paused\n")
    assert kept.stderr.startswith("About to resume crates (workers: 1 dead, 1 unknown). Go on?")
    assert (kept.exit_code, pauses(shell.engine)) == (1, ["crate"])


def test_health_tells_whether_a_worker_of_this_host_is_at_work(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = shell("health", CRATES)
    with Owner(shell.engine, "mailer") as owner, Session(shell.engine) as session:
        register_worker(session, owner.name, [Crate], tables=TABLES)
        session.commit()
        alive = shell("health", CRATES)
        with monkeypatch.context() as later:
            later.setattr("sa_jobqueue.cli.see.WITHIN", timedelta(milliseconds=1))
            old = shell("health", CRATES)
        register_worker(session, owner.name, [Crate], stuck="a COMMIT", tables=TABLES)
        session.commit()
        stuck, listed = shell("health", CRATES), shell("workers", CRATES, "--json")
    dead = shell("health", CRATES)

    assert (alive.exit_code, alive.stdout[:13]) == (0, "ok: 1 workers")
    assert [each.exit_code for each in (nobody, old, stuck, dead)] == [1, 1, 1, 1]
    assert "is at work: 0 listed" in nobody.stderr
    assert "1 listed, 0 seen within" in old.stderr
    assert "one is stuck in a COMMIT" in stuck.stderr
    (worker,) = json.loads(listed.stdout)["workers"]
    assert (worker["state"], worker["stuck"]) == ("stuck", "a COMMIT")


def test_workers_shows_who_is_alive_and_what_is_paused(shell: Shell) -> None:
    with Owner(shell.engine, "mailer") as owner:
        with shell.session() as session:
            register_worker(session, owner.name, [Crate], jobs=2, tables=TABLES)
        shell("pause", CRATES, "--yes")

        living = json.loads(shell("workers", "tests.cli.depot", "--json").stdout)
        name = owner.name
    dead = shell("workers", CRATES).stdout

    for word in ("seen", "dead", "crates is paused since"):
        assert word in dead
    (worker,) = living["workers"]
    assert (worker["name"], worker["state"], worker["jobs"]) == (name, "alive", 2)
    assert worker["queues"] == ["crate"]
    assert [pause["queue"] for pause in living["paused"]] == ["crate"]


def test_request_stop_asks_for_claimed_jobs_and_tells_which_were_left_alone(shell: Shell) -> None:
    shell.add(Crate(id=1), Crate(id=2), Crate(id=3))
    with shell.session() as session:
        claim(session, Crate, Crate.id < 3, owner="w", limit=2)

    refused = shell("request-stop", CRATES, 1, 2, answer="n\n")
    told = shell("request-stop", CRATES, 1, 3, 4, "--yes")

    assert refused.stderr.startswith("About to request-stop 2 jobs of crates: 1, 2. Go on?")
    assert told.stdout.splitlines() == [
        "request-stop: 1 job",
        "left alone, for their status or queue is another: 3, 4",
    ]
    assert shell.read(TABLES.stops.c.job_key) == ["[1]"]


@pytest.fixture
def nightly(engine: Engine, tables: None) -> None:
    pytest.importorskip("cronsim")
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "nightly", crates, "0 3 * * *", timezone="Europe/Berlin")


@pytest.mark.usefixtures("nightly")
def test_schedules_are_listed_paused_resumed_and_run_now(shell: Shell) -> None:
    (listed,) = json.loads(shell("schedules", CRATES, "--json").stdout)
    assert (listed["name"], listed["cron"], listed["paused"]) == ("nightly", "0 3 * * *", False)
    assert re.match(r"\d{4}-\d\d-\d\dT", listed["next_tick"])
    options = ("schedules", "tests.cli.depot", "--yes", "--json")

    for option, asked in (
        ("--pause", "pause the schedule nightly"),
        ("--resume", "resume the schedule nightly"),
        ("--run", "insert a job of the schedule nightly"),
    ):
        refused = shell("schedules", CRATES, option, "nightly")
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"About to {asked}. Go on?")
    assert shell.read(func.count(Crate.id)) == [0]
    resumed = shell(*options, "--resume", "nightly")
    paused = shell(*options, "--pause", "nightly")
    again = shell(*options, "--pause", "nightly")
    shell(*options, "--run", "nightly")

    assert resumed.stderr == "the schedule nightly was so already: nothing has changed\n"
    assert paused.stderr == ""
    assert json.loads(paused.stdout)[0]["paused"] is True
    assert again.stderr == "the schedule nightly was so already: nothing has changed\n"
    assert shell.read(func.count(Crate.id)) == [1]


@pytest.mark.usefixtures("nightly")
def test_times_are_in_utc_and_a_strangers_text_is_printed_as_it_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with shell.session() as session:
        SCHEDULES.add(session, "digest [/b]", crates, "0 3 * * *")
        error = "refused [red]\n[SQL: INSERT INTO crate]"
        gap = {"skipped_from": utc_now(), "skipped_to": utc_now(), "last_error": error}
        session.execute(update(SCHEDULES.entity).values(gap))

    listed = shell("schedules", CRATES).stdout

    for text in ("next (UTC)", "last (UTC)", "digest [/b]", "failed: refused [red]"):
        assert text in listed
    assert re.search(r"missed .+ until .+:\d\d UTC", listed)
    assert "SQL" not in listed
