"""``work``, ``status``, ``reap``, ``sql`` and ``doctor`` on a user's own workflow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from .conftest import Run, plain
from .films import Base, Film, cut
from .records import ends

WORKFLOW = "tests.cli.films:workflow"


@pytest.fixture(autouse=True)
def films(engine: Engine) -> None:
    """Two unclaimed films, of which one is hard."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Film(title="easy"), Film(title="hard")])


def statuses(engine: Engine) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(Film.status).order_by(Film.id)).all()


def test_a_worker_says_where_each_job_went(run: Run, url: str, engine: Engine) -> None:
    result = run("work", WORKFLOW, "--url", url, "--drain", "--log-json")

    assert ends(result) == [(1, "cut"), (1, "done"), (2, "unclaimed"), (2, "cut"), (2, "done")]
    assert statuses(engine) == []  # as the model says


def test_a_worker_works_on_the_steps_that_are_named(run: Run, url: str, engine: Engine) -> None:
    result = run("work", WORKFLOW, "--url", url, "--drain", "--step", "cut")

    assert result.exit_code == 0, result.output
    assert statuses(engine) == ["cut", "cut"]


def test_a_single_step_has_a_name_of_its_own(run: Run, url: str, engine: Engine) -> None:
    result = run("work", "tests.cli.films:show", "--url", url, "--drain", "--log-json")

    assert ends(result) == []
    assert statuses(engine) == ["unclaimed", "unclaimed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([WORKFLOW, "--step", "sell"], "there is no step 'sell'; there are cut, show"),
        ([WORKFLOW, "--handler", "tests.cli.shop:send"], "leave --handler out"),
        (["tests.cli.films:Film"], "or give --handler"),
        (["tests.cli.films:Film", "--step", "cut"], "leave --step out"),
        ([WORKFLOW, WORKFLOW, "--step", "cut"], "--step is for one MODULE:QUEUE"),
        (["tests.cli.films", "--handler", "tests.cli.shop:send"], "is for one MODULE:QUEUE"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    run: Run, url: str, arguments: list[str], said: str
) -> None:
    result = run("work", *arguments, "--url", url)

    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", "").split())


def test_a_workflow_shows_its_status_and_is_reaped(run: Run, url: str, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        cut.queue.claim(session, owner="gone")

    status = run("status", "--url", url, WORKFLOW)
    reaped = run("reap", WORKFLOW, "--url", url, "--max-runtime", 0)

    for line in ("unclaimed 1", "claimed 1", "cut 0", "showing 0"):
        assert line in plain(status.output)
    assert "1 can be claimed again" in reaped.output
    assert statuses(engine) == ["unclaimed", "unclaimed"]


def test_statements_are_those_of_a_step(run: Run) -> None:
    whole = run("sql", WORKFLOW, "--dialect", "sqlite")
    step = run("sql", "tests.cli.films:show", "--dialect", "sqlite")

    assert whole.exit_code == 1
    assert "name one of its steps, cut, show" in whole.output
    assert "status = 'cut'" in step.output
