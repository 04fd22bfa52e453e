"""``schedules``."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue

from .conftest import Run
from .controlled import SCHEDULES, Base, Letter

pytest.importorskip("cronsim")

LETTERS = "tests.cli.controlled:Letter"


@pytest.fixture
def nightly(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        SCHEDULES.add(session, "nightly", JobQueue(Letter), "0 3 * * *", timezone="Europe/Berlin")


@pytest.mark.usefixtures("nightly")
def test_schedules_are_listed_paused_resumed_and_run_now(
    run: Run, url: str, engine: Engine
) -> None:
    (listed,) = json.loads(run("schedules", LETTERS, "--url", url, "--json").stdout)
    assert (listed["name"], listed["cron"], listed["paused"]) == ("nightly", "0 3 * * *", False)
    assert listed["next_tick"] > "2026"

    assert "paused" in run("schedules", LETTERS, "--url", url, "--pause", "nightly").stdout
    assert "paused" not in run("schedules", LETTERS, "--url", url, "--resume", "nightly").stdout
    run("schedules", LETTERS, "--url", url, "--run", "nightly")

    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Letter)) == 1


@pytest.mark.usefixtures("nightly")
def test_an_unknown_schedule_and_a_queue_without_schedules_are_errors(run: Run, url: str) -> None:
    unknown = run("schedules", LETTERS, "--url", url, "--run", "weekly")
    without = run("schedules", "tests.cli.shop:Message", "--url", url)

    assert unknown.exit_code == without.exit_code == 1
    assert "there is no schedule 'weekly'" in unknown.stderr
    assert "Schedules(metadata)" in without.stderr
