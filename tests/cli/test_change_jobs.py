"""``failed``, ``retry``, ``cancel``, ``release``, ``reprioritize`` and ``prune``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import URL, Engine, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from tests.support import make_engine, with_empty_tables

from .conftest import Shell
from .depot import Base, Crate, Shelf

CRATES, BARRELS = "tests.cli.depot:crates", "tests.cli.depot:barrels"
SHELVES = "tests.cli.depot:shelves"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

pytestmark = [
    pytest.mark.usefixtures("tables"),
    pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb"),
]


@pytest.fixture
def url(shop_url: str, folder: Path) -> str:
    return shop_url


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    yield engine
    engine.dispose()


@pytest.fixture
def tables(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)


def failed(key: int, **values: Any) -> Crate:
    moment = LONG_AGO + timedelta(minutes=key)
    return Crate(**{"id": key, "status": "failed", "attempts": 5, "owner_date": moment, **values})


def statuses(shell: Shell) -> dict[int, str]:
    with Session(shell.engine) as session:
        return {crate.id: crate.status for crate in session.scalars(select(Crate))}


def test_failed_jobs_are_listed_with_their_errors(shell: Shell) -> None:
    shell.add(failed(1, last_error="\x1b]0;[red]no luck\nline 2"), failed(2, last_error="later"))

    shown = shell("failed", CRATES).stdout
    (newest,) = json.loads(shell("failed", CRATES, "--limit", 1, "--json").stdout)

    assert "\ufffd]0;[red]no luck" in shown  # neither rich nor the terminal obeys it
    assert "line 2" not in shown
    assert newest == {
        "queue": "crate",
        "key": [2],
        "job": "box",
        "attempts": 5,
        "failed_at": "2020-01-01T00:02:00+00:00",
        "last_error": "later",
    }


@pytest.mark.only_on("sqlite", "postgresql")
def test_without_an_index_the_last_rows_are_looked_at_and_retry_refuses(shell: Shell) -> None:
    shell.add(Shelf(hall="z", number=1, status="failed", owner_date=LONG_AGO))
    with shell.session() as session:
        others = [{"hall": "a", "number": n, "status": "done"} for n in range(10_001)]
        session.execute(insert(Shelf), others)

    listed = shell("failed", SHELVES, "--json")
    retried = shell("retry", SHELVES, "--failed", "--yes")

    assert [job["key"] for job in json.loads(listed.stdout)] == [["z", 1]]
    assert '"failed_index": True' in listed.stderr
    assert (retried.exit_code, len(retried.stderr.splitlines())) == (1, 1)
    assert '"failed_index": True' in retried.stderr


LEFT = "left alone, for their status or queue is another: "

DUE, CANCELLED = "unclaimed", "cancelled"
OLD = ("--older-than", 3600)

#: What is typed, the question, the answer, and what became of the jobs 1 (due), 2 and 3 (failed,
#: the latter a barrel), 4 (claimed by w), 5 (done long ago) and 6 (cancelled).
COMMANDS = [
    (("retry", CRATES, 2, 5, 9), "3 jobs of crates: 2, 5, 9", f"2 jobs\n{LEFT}9", {2: DUE, 5: DUE}),
    (("retry", BARRELS, 2, 3), "2 jobs of barrels: 2, 3", f"1 job\n{LEFT}2", {3: DUE}),
    (("retry", CRATES, "--failed"), "2 failed jobs of crates", "2 jobs", {2: DUE, 3: DUE}),
    (("cancel", CRATES, 1, 4), "2 jobs of crates: 1, 4", f"1 job\n{LEFT}4", {1: CANCELLED}),
    (("release", CRATES, 4, 1), "2 jobs of crates: 4, 1", f"1 job\n{LEFT}1", {4: DUE}),
    (("release", CRATES, "--owner", "w"), "", "1 job", {4: DUE}),
    (("reprioritize", CRATES, 1, 2, "--priority", -7), "2 jobs", f"1 job\n{LEFT}2", {}),
    (("prune", CRATES, *OLD), "that are older than 1 h", "1 job of crates", {5: None}),
    (("prune", CRATES, *OLD, "--status", "failed"), "failed", "2 jobs of", {2: None, 3: None}),
]


@pytest.mark.parametrize(("command", "asked", "told", "changes"), COMMANDS)
def test_a_command_says_what_it_will_do_and_does_it_when_somebody_agrees(
    shell: Shell, command: tuple[object, ...], asked: str, told: str, changes: Any
) -> None:
    shell.add(Crate(id=4), failed(2), failed(3, kind="barrel"), failed(5, status="done"))
    with shell.session() as session:
        claim(session, Crate, owner="w")
    shell.add(Crate(id=1), failed(6, status="cancelled"))
    before = statuses(shell)

    refused = [shell(*command, answer=answer) for answer in ("", "n\n")]
    untouched = statuses(shell)
    agreed = shell(*command, answer="y\n")

    assert [each.exit_code for each in refused] == [1, 1]
    assert refused[0].stderr.startswith("About to ")
    assert asked in refused[0].stderr
    assert untouched == before
    assert agreed.stdout.startswith(f"{command[0]}: {told}")
    assert {**dict.fromkeys(before), **statuses(shell)} == {**before, **changes}
    if "reprioritize" in command:
        with Session(shell.engine) as session:
            assert session.get_one(Crate, 1).priority == -7


def test_what_was_changed_and_left_alone_is_told_as_json(shell: Shell) -> None:
    shell.add(failed(2), failed(3, kind="barrel"))

    told = shell("retry", BARRELS, 2, 3, "--yes", "--json").stdout
    pruned = shell(
        "prune", CRATES, "--older-than", 0, "--status", "failed", "--yes", "--json"
    ).stdout

    assert json.loads(told) == {"queue": "crate", "verb": "retry", "changed": [[3]], "left": [[2]]}
    assert json.loads(pruned) == [{"queue": "crate", "verb": "prune", "deleted": 1}]


def test_all_failed_jobs_are_retried_but_those_that_fail_after_the_question(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.add(*map(failed, range(1, 602)), Crate(id=700, status="done"))
    late = failed(800, owner_date=datetime.now(UTC) + timedelta(hours=1))
    monkeypatch.setattr(click, "confirm", lambda *_, **__: shell.add(late))

    told = shell("retry", CRATES, "--failed").stdout

    assert told == "retry: 601 jobs\n"
    found = statuses(shell)
    assert (found.pop(700), found.pop(800)) == ("done", "failed")
    assert set(found.values()) == {"unclaimed"}
