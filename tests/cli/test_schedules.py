"""``schedules``."""

from __future__ import annotations

import json
import re

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, utc_now
from sa_jobqueue.model.mapping import mapping_of

from .conftest import Answered, Run
from .controlled import SCHEDULES, Base, Letter

pytest.importorskip("cronsim")

LETTERS = "tests.cli.controlled:Letter"


@pytest.fixture
def nightly(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "nightly", JobQueue(Letter), "0 3 * * *", timezone="Europe/Berlin")


def count_letters(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalars(select(func.count()).select_from(Letter)).one()


@pytest.mark.usefixtures("nightly")
def test_schedules_are_listed_paused_resumed_and_run_now(
    run: Run, url: str, engine: Engine
) -> None:
    (listed,) = json.loads(run("schedules", LETTERS, "--url", url, "--json").stdout)
    assert (listed["name"], listed["cron"], listed["paused"]) == ("nightly", "0 3 * * *", False)
    assert listed["next_tick"] > "2026"

    options = ("schedules", LETTERS, "--url", url, "--yes")
    assert "paused" in run(*options, "--pause", "nightly").stdout
    assert "paused" not in run(*options, "--resume", "nightly").stdout
    run(*options, "--run", "nightly")
    assert count_letters(engine) == 1


@pytest.mark.usefixtures("nightly")
def test_a_change_that_changes_nothing_says_so(run: Run, url: str) -> None:
    options = ("schedules", LETTERS, "--url", url, "--yes", "--json")

    resumed = run(*options, "--resume", "nightly")
    paused = run(*options, "--pause", "nightly")
    again = run(*options, "--pause", "nightly")

    assert resumed.stderr == "the schedule nightly was not paused: nothing has changed\n"
    assert json.loads(resumed.stdout)[0]["paused"] is False
    assert paused.stderr == ""
    assert again.stderr == "the schedule nightly was paused already: nothing has changed\n"


@pytest.mark.usefixtures("nightly")
def test_the_times_of_schedules_say_that_they_are_in_utc(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    gap = {"skipped_from": utc_now(), "skipped_to": utc_now()}
    with engine.begin() as connection:
        connection.execute(update(mapping_of(SCHEDULES.entity).table).values(gap))

    listed = run("schedules", LETTERS, "--url", url).stdout

    assert "next (UTC)" in listed
    assert "last (UTC)" in listed
    assert re.search(r"missed .+ until .+:\d\d UTC", listed)


def test_names_and_errors_are_printed_as_they_are(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "digest [/b]", Letter, "0 3 * * *")
        row = session.get_one(SCHEDULES.entity, "digest [/b]")
        row.last_error = "refused [red]\n[SQL: INSERT INTO letter]"

    listed = run("schedules", LETTERS, "--url", url)

    assert listed.exit_code == 0
    assert "digest [/b]" in listed.stdout
    assert "failed: refused [red]" in listed.stdout
    assert "SQL" not in listed.stdout


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("--pause", "pause the schedule nightly: it will insert no jobs"),
        ("--resume", "resume the schedule nightly: it will insert jobs again"),
        ("--run", "insert a job of the schedule nightly into letter"),
    ],
)
def test_a_schedule_is_changed_only_when_somebody_agrees(
    run: Run, url: str, engine: Engine, answered: Answered, option: str, asked: str
) -> None:
    command = ("schedules", LETTERS, "--url", url)
    (before,) = json.loads(run(*command, "--json").stdout)

    refused = answered("", *command, option, "nightly")

    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"About to {asked}. Go on?")
    assert json.loads(run(*command, "--json").stdout) == [before]
    assert count_letters(engine) == 0


@pytest.mark.usefixtures("nightly")
def test_an_unknown_schedule_and_a_queue_without_schedules_are_errors(run: Run, url: str) -> None:
    unknown = run("schedules", LETTERS, "--url", url, "--run", "weekly", "--yes")
    without = run("schedules", "tests.cli.shop:Message", "--url", url)

    assert unknown.exit_code == without.exit_code == 1
    assert "there is no schedule 'weekly'" in unknown.stderr
    assert "Schedules(metadata)" in without.stderr
