"""``pause``, ``resume`` and ``workers``."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner
from sa_jobqueue.control import paused, register_worker, update_worker

from .conftest import Answered, Run
from .controlled import TABLES, Base, Letter

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
@pytest.mark.parametrize("command", [("pause", LETTERS, "--yes"), ("workers", LETTERS)])
def test_a_missing_table_of_pauses_is_named(
    run: Run, url: str, engine: Engine, command: tuple[str, ...]
) -> None:
    TABLES.pauses.drop(engine)

    told = run(*command, "--url", url)

    assert (told.exit_code, "there is no table 'job_pauses'" in told.stderr) == (1, True)


def test_without_control_tables_the_commands_name_the_way_out(
    run: Run, url: str, engine: Engine
) -> None:
    Letter.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table

    missing = run("pause", LETTERS, "--url", url)
    undeclared = run("workers", "tests.cli.shop:Message", "--url", url)

    assert missing.exit_code == undeclared.exit_code == 1
    assert "there is no table 'job_workers'" in missing.stderr
    assert "control_tables(metadata)" in undeclared.stderr
