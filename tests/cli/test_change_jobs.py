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

from sa_jobqueue import ClaimLost, claim, complete, steering
from sa_jobqueue.counts.count import forget_schema
from tests.support import make_engine, with_empty_tables

from .conftest import Run, add
from .depot import Base, Box, Crate, Shelf

CRATES, SHELVES = "tests.cli.depot:crates", "tests.cli.depot:shelves"
BARRELS = "tests.cli.depot:barrels"
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
    forget_schema()
    with_empty_tables(engine, Base.metadata)


def failed(key: int, **values: Any) -> Crate:
    moment = LONG_AGO + timedelta(minutes=key)
    return Crate(id=key, status="failed", attempts=5, owner_date=moment, **values)


def statuses(engine: Engine) -> dict[int, str]:
    with Session(engine) as session:
        return {crate.id: crate.status for crate in session.scalars(select(Crate))}


def test_failed_jobs_are_listed_with_their_errors(run: Run, url: str, engine: Engine) -> None:
    add(engine, failed(1, last_error="\x1b]0;[red]no luck\nline 2"), failed(2, last_error="later"))

    shown = run("failed", CRATES, "--url", url).stdout
    (newest,) = json.loads(run("failed", CRATES, "--url", url, "--limit", 1, "--json").stdout)

    assert "\ufffd]0;[red]no luck" in shown  # neither rich nor the terminal obeys it
    assert "line 2" not in shown
    assert newest == {
        "queue": "crate",
        "key": [2],
        "attempts": 5,
        "failed_at": "2020-01-01T00:02:00+00:00",
        "last_error": "later",
    }


@pytest.mark.only_on("sqlite", "postgresql")
def test_without_an_index_the_last_rows_are_looked_at_and_retry_refuses(
    run: Run, url: str, engine: Engine
) -> None:
    add(engine, Shelf(hall="z", number=1, status="failed", owner_date=LONG_AGO))
    with engine.begin() as connection:
        connection.execute(
            insert(Shelf), [{"hall": "a", "number": n, "status": "done"} for n in range(10_001)]
        )

    listed = run("failed", SHELVES, "--url", url, "--json")
    retried = run("retry", SHELVES, "--failed", "--yes", "--url", url)

    assert [job["key"] for job in json.loads(listed.stdout)] == [["z", 1]]
    assert '"failed_index": True' in listed.stderr
    assert (retried.exit_code, len(retried.stderr.splitlines())) == (1, 1)
    assert '"failed_index": True' in retried.stderr


def test_a_command_says_what_it_will_do_and_asks(run: Run, url: str, engine: Engine) -> None:
    add(engine, failed(1), failed(2))
    command = ("retry", CRATES, 1, 2, "--url", url)

    refused = run(*command, answer="n\n")
    nobody = run(*command, answer="")
    untouched = statuses(engine)
    agreed = run(*command, answer="y\n")

    assert "About to retry 2 jobs of crate: 1, 2. Go on?" in refused.stderr
    assert (refused.exit_code, nobody.exit_code) == (1, 1)
    assert untouched == {1: "failed", 2: "failed"}
    assert (agreed.exit_code, agreed.stdout) == (0, "retry: 2 jobs\n")
    assert statuses(engine) == {1: "unclaimed", 2: "unclaimed"}


@pytest.mark.parametrize(
    "command",
    [
        ("retry", CRATES, "--failed"),
        ("cancel", CRATES, "--all"),
        ("release", CRATES, "--owner", "w"),
        ("reprioritize", CRATES, "1", "--priority", "3"),
        ("prune", CRATES, "--older-than", "0", "--status", "failed"),
    ],
)
def test_no_command_changes_anything_when_nobody_agrees(
    run: Run, url: str, engine: Engine, command: tuple[str, ...]
) -> None:
    add(engine, Crate(id=1), failed(2))

    result = run(*command, "--url", url, answer="")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"About to {'delete' if 'prune' in command else command[0]}")
    assert statuses(engine) == {1: "unclaimed", 2: "failed"}


def test_jobs_that_a_verb_leaves_alone_are_named(run: Run, url: str, engine: Engine) -> None:
    add(engine, Crate(id=1), failed(2), failed(3, kind="barrel"))

    plain = run("retry", CRATES, 1, 2, 9, "--url", url, "--yes").stdout
    of_barrels = run("retry", BARRELS, 2, 3, "--url", url, "--yes", "--json").stdout

    assert plain == "retry: 1 job\nleft alone, for their status or queue is another: 1, 9\n"
    told = {"queue": "crate", "verb": "retry", "changed": [[3]], "left": [[2]]}
    assert json.loads(of_barrels) == told


def test_a_changed_job_with_a_key_of_a_type_of_ones_own_was_not_left_alone(
    run: Run, url: str, engine: Engine
) -> None:
    add(engine, Box(id=1), Box(id=2, status="done"))

    told = run("cancel", f"{__package__}.depot:Box", 1, 2, "--url", url, "--yes").stdout

    assert told == "cancel: 1 job\nleft alone, for their status or queue is another: 2\n"


def test_all_failed_jobs_of_a_queue_are_retried_page_by_page(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "BATCH", 2)
    add(engine, *(failed(key) for key in range(1, 6)), Crate(id=6, status="done"))

    asked = run("retry", CRATES, "--failed", "--url", url, answer="y\n")

    assert "About to retry 5 failed jobs of crate." in asked.stderr
    assert asked.stdout == "retry: 5 jobs\n"
    assert statuses(engine) == {**dict.fromkeys(range(1, 6), "unclaimed"), 6: "done"}


def test_a_job_that_fails_after_the_question_is_not_retried(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(engine, failed(1), failed(2))
    monkeypatch.setattr(click, "confirm", lambda *_, **__: add(engine, failed(3)))

    told = run("retry", CRATES, "--failed", "--url", url, answer="y\n").stdout

    assert told == "retry: 2 jobs\n"
    assert statuses(engine) == {1: "unclaimed", 2: "unclaimed", 3: "failed"}


def test_all_unclaimed_jobs_of_a_queue_are_cancelled(
    run: Run, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "BATCH", 2)
    later = datetime.now(UTC) + timedelta(days=1)
    add(engine, *(Crate(id=key, kind="barrel") for key in (1, 2, 3)), Crate(id=4), failed(5))
    add(engine, Crate(id=6, kind="barrel", run_at=later))

    told = run("cancel", BARRELS, "--all", "--url", url, "--yes").stdout

    assert told == "cancel: 4 jobs\n"
    assert [key for key, word in statuses(engine).items() if word == "cancelled"] == [1, 2, 3, 6]


def test_a_released_job_can_be_claimed_again_and_its_old_claim_is_lost(
    run: Run, url: str, engine: Engine
) -> None:
    add(engine, Crate(id=1), Crate(id=2), Crate(id=3))
    with Session(engine, expire_on_commit=False) as session:
        jobs = claim(session, Crate, owner="w", limit=3)
        session.commit()

        by_key = run("release", CRATES, 1, "--url", url, "--yes").stdout
        left = statuses(engine)
        by_owner = run("release", CRATES, "--owner", "w", "--url", url, "--yes", "--json").stdout

        assert by_key == "release: 1 job\n"
        assert left == {1: "unclaimed", 2: "claimed", 3: "claimed"}
        assert json.loads(by_owner)["changed"] == [[2], [3]]
        with pytest.raises(ClaimLost):
            complete(session, jobs)


def test_jobs_get_another_priority(run: Run, url: str, engine: Engine) -> None:
    add(engine, Crate(id=1), Crate(id=2), failed(3))

    told = run("reprioritize", CRATES, 1, 3, "--priority", -7, "--url", url, "--yes").stdout

    with Session(engine) as session:
        priorities = session.scalars(select(Crate.priority).order_by(Crate.id)).all()
    assert priorities == [-7, 0, 0]
    assert told.splitlines()[0] == "reprioritize: 1 job"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("retry", CRATES), "which jobs? give keys, or --failed"),
        (("retry", CRATES, "1", "--failed"), "give keys, or --failed, not both"),
        (("cancel", CRATES), "which jobs? give keys, or --all"),
        (("release", CRATES, "1", "--owner", "w"), "give keys, or --owner, not both"),
        (("reprioritize", CRATES, "--priority", "1"), "which jobs? give keys"),
        (("cancel", CRATES, "x"), "'x' is no key of Crate, which is id"),
        (("cancel", CRATES, "1,2"), "'1,2' is no key of Crate, which is id"),
    ],
)
def test_the_jobs_are_named_in_one_way(
    run: Run, url: str, command: tuple[str, ...], said: str
) -> None:
    result = run(*command, "--url", url, "--yes")

    assert result.exit_code == 2
    assert said in result.stderr


def test_old_finished_jobs_are_deleted_and_others_stay(run: Run, url: str, engine: Engine) -> None:
    add(engine, *(Crate(id=key, status="done", owner_date=LONG_AGO) for key in (1, 2)))
    add(engine, Crate(id=3, status="done", owner_date=datetime.now(UTC)), failed(4), Crate(id=5))
    command = ("prune", CRATES, "--older-than", 3600, "--url", url)

    asked = run(*command, answer="y\n")
    of_failed = run(*command, "--status", "failed", "--yes", "--json").stdout

    assert "delete the completed jobs of crate that are older than 1 h" in asked.stderr
    assert asked.stdout == "prune: 2 jobs of crate\n"
    assert json.loads(of_failed) == {"queue": "crate", "verb": "prune", "deleted": 1}
    assert sorted(statuses(engine)) == [3, 5]
