"""``pause``, ``resume``, ``workers`` and ``request-stop``."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim
from sa_jobqueue.control import paused, register_worker, update_worker

from .conftest import Answered, Run
from .controlled import TABLES, Base, Letter
from .shop import Message

LETTERS = "tests.cli.controlled:Letter"


@pytest.fixture
def tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)


def pauses(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return [found.queue for found in paused(session, tables=TABLES)]


@pytest.mark.usefixtures("tables")
def test_pause_and_resume_commit_and_tell_what_was(run: Run, url: str, engine: Engine) -> None:
    options = (LETTERS, "--url", url, "--yes")

    assert run("pause", *options).stdout == "letter is paused\n"
    assert pauses(engine) == ["letter"]
    assert run("pause", *options).stdout == "letter was paused already\n"

    assert run("resume", *options).stdout == "letter is resumed\n"
    assert pauses(engine) == []
    assert run("resume", *options).stdout == "letter was not paused\n"


@pytest.mark.usefixtures("tables")
def test_pause_and_resume_say_whom_they_concern_and_ask(
    url: str, engine: Engine, answered: Answered
) -> None:
    with Owner(engine, "mailer") as owner, Session(engine) as session:
        for name in (owner.name, "plain"):
            register_worker(session, name, [Letter], tables=TABLES)
        session.commit()

        refused = answered("n\n", "pause", LETTERS, "--url", url)
        nobody = answered("", "pause", LETTERS, "--url", url)
        untouched = pauses(engine)
        agreed = answered("y\n", "pause", LETTERS, "--url", url)
    kept = answered("n\n", "resume", LETTERS, "--url", url)

    asked = "1 live worker and 1 of unknown state will claim no more of its jobs. Go on?"
    assert refused.stderr.startswith(f"About to pause letter: {asked}")
    assert (refused.exit_code, nobody.exit_code, untouched) == (1, 1, [])
    assert (agreed.exit_code, agreed.stdout) == (0, "letter is paused\n")
    asked = "0 live workers and 1 of unknown state will claim its jobs again. Go on?"
    assert kept.stderr.startswith(f"About to resume letter: {asked}")
    assert (kept.exit_code, pauses(engine)) == (1, ["letter"])


@pytest.mark.usefixtures("tables")
def test_pause_and_resume_as_json_tell_what_is_and_whether_it_is_new(run: Run, url: str) -> None:
    commands = [("pause", LETTERS), ("pause", LETTERS), ("resume", LETTERS)]

    ran = [run(*command, "--url", url, "--json", "--yes") for command in commands]

    told = [json.loads(each.stdout) for each in ran]
    assert [(answer["paused"], answer["changed"]) for answer in told] == [
        (True, True),
        (True, False),
        (False, True),
    ]


@pytest.mark.usefixtures("tables")
def test_workers_shows_who_is_alive_and_what_is_paused(run: Run, url: str, engine: Engine) -> None:
    with Owner(engine, "mailer") as owner:
        with Session(engine) as session, session.begin():
            register_worker(session, owner.name, [Letter], tables=TABLES)
            update_worker(session, owner.name, jobs=2, tables=TABLES)
        run("pause", LETTERS, "--url", url, "--yes")

        living = json.loads(run("workers", LETTERS, "--url", url, "--json").stdout)
        name = owner.name
    dead = run("workers", LETTERS, "--url", url)

    assert "seen (UTC)" in dead.stdout
    (worker,) = living["workers"]
    assert (worker["name"], worker["state"], worker["jobs"]) == (name, "alive", 2)
    assert worker["queues"] == ["letter"]
    assert [pause["queue"] for pause in living["paused"]] == ["letter"]
    assert "dead" in dead.stdout
    assert "letter is paused since" in dead.stdout


@pytest.mark.usefixtures("tables")
def test_status_of_a_queue_says_that_it_is_paused(run: Run, url: str) -> None:
    before = run("status", LETTERS, "--url", url).stdout
    run("pause", LETTERS, "--url", url, "--yes")
    after = run("status", LETTERS, "--url", url).stdout

    assert "paused" not in before
    assert "letter is paused since" in after


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("command", [("pause", LETTERS, "--yes"), ("workers", LETTERS)])
def test_a_missing_table_of_pauses_is_named(
    run: Run, url: str, engine: Engine, command: tuple[str, ...]
) -> None:
    TABLES.pauses.drop(engine)

    told = run(*command, "--url", url)

    assert told.exit_code == 1
    assert "there is no table 'job_pauses'" in told.stderr
    assert "metadata.create_all(engine) or a migration creates it" in told.stderr


def test_without_control_tables_the_commands_name_the_way_out(
    run: Run, url: str, engine: Engine
) -> None:
    Letter.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table

    missing = run("pause", LETTERS, "--url", url)
    undeclared = run("workers", "tests.cli.shop:Message", "--url", url)

    assert missing.exit_code == undeclared.exit_code == 1
    assert "there is no table 'job_workers'" in missing.stderr
    assert "control_tables(metadata)" in undeclared.stderr


def claimed_and_not(engine: Engine) -> None:
    """Insert letters, of which 1 and 2 are claimed, and 3 is not."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Letter(id=1), Letter(id=2), Letter(id=3)])
        session.commit()
        claim(session, Letter, Letter.id < 3, owner="w", limit=2)
        session.commit()


def stops(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(TABLES.stops.c.job_key)))


def test_request_stop_asks_for_claimed_jobs_and_tells_which_were_left_alone(
    run: Run, url: str, engine: Engine
) -> None:
    claimed_and_not(engine)
    options = ("--url", url, "--yes")

    told = run("request-stop", LETTERS, "1", "3", "4", *options)
    as_json = run("request-stop", LETTERS, "2", "3", *options, "--json")

    assert told.stdout.splitlines() == [
        "request-stop: 1 job",
        "left alone, for their status or queue is another: 3, 4",
    ]
    answer = json.loads(as_json.stdout)
    assert (answer["verb"], answer["changed"], answer["left"]) == ("request-stop", [[2]], [[3]])
    assert sorted(stops(engine)) == ["[1]", "[2]"]


def test_request_stop_says_what_it_is_about_to_do_and_asks(
    url: str, engine: Engine, answered: Answered
) -> None:
    claimed_and_not(engine)

    refused = answered("n\n", "request-stop", LETTERS, "1", "2", "--url", url)
    without_keys = answered("", "request-stop", LETTERS, "--url", url)

    asked = "About to ask the workers to stop 2 jobs of letter: 1, 2. Go on?"
    assert refused.stderr.startswith(asked)
    assert (refused.exit_code, without_keys.exit_code) == (1, 2)
    assert "give keys" in without_keys.stderr
    assert stops(engine) == []


def test_request_stop_without_its_table_names_the_way_out(
    run: Run, url: str, engine: Engine
) -> None:
    Base.metadata.create_all(engine)
    TABLES.stops.drop(engine)
    Message.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table

    missing = run("request-stop", LETTERS, "1", "--url", url, "--yes")
    undeclared = run("request-stop", "tests.cli.shop:Message", "1", "--url", url, "--yes")

    assert missing.exit_code == undeclared.exit_code == 1
    assert "there is no table 'job_stops'" in missing.stderr
    assert "control_tables(metadata)" in undeclared.stderr
