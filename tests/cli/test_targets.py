"""``work`` on several queues, and on all of a module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from . import films
from .bakery import Base, Loaf
from .conftest import Run
from .records import ends, messages

BAKERY = "tests.cli.bakery"


@pytest.fixture(autouse=True)
def loaves(engine: Engine) -> None:
    """A loaf of each kind, and a film, which the bakery imports."""
    Base.metadata.create_all(engine)
    films.Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Loaf(kind=kind) for kind in ("bread", "cake", "idea")])
        session.add(films.Film(title="easy"))


@pytest.fixture
def drain(run: Run, url: str) -> Run:
    def drain(*targets: str) -> Result:
        return run("work", *targets, "--url", url, "--drain", "--log-json")

    return drain


def statuses(engine: Engine) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(Loaf.status).order_by(Loaf.id)).all()


def test_a_module_stands_for_all_its_queues_with_handlers_and_its_workflows(
    drain: Run, engine: Engine
) -> None:
    result = drain(BAKERY)

    assert sorted(ends(result)) == [(1, "cut"), (1, "done"), (1, "done"), (2, "done")]
    assert statuses(engine) == ["done", "done", "unclaimed"]


def test_a_queue_counts_once_and_queues_without_a_handler_are_named_once(drain: Run) -> None:
    left_alone, begins, *_ = messages(drain(BAKERY, f"{BAKERY}:same_bread", "tests.cli.films"))

    assert left_alone == f"queues without a handler are left alone: {BAKERY}:ideas"
    assert begins == (
        f"a worker begins: {BAKERY}:films.cut, {BAKERY}:films.show, {BAKERY}:bread, {BAKERY}:cakes"
    )


def test_several_queues_are_worked_on_together(drain: Run, engine: Engine) -> None:
    drain(f"{BAKERY}:cakes", "tests.cli.films:cut")

    assert statuses(engine) == ["unclaimed", "done", "unclaimed"]
    with Session(engine) as session:
        assert session.scalars(select(films.Film.status)).one() == "cut"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tests.cli.shop", "only tests.cli.shop:to_a without one: declare one"),
        ("tests.cli.records", "'tests.cli.records' has no queue with a handler: declare one"),
        ("no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_a_module_that_handles_nothing_is_an_error_that_says_the_way_out(
    drain: Run, target: str, said: str
) -> None:
    result = drain(target)

    assert result.exit_code == 1
    assert said in result.output
    if "module" not in target:
        assert "give --handler MODULE:FUNCTION" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"{BAKERY}:ideas",), "has no handler: declare one"),
        ((f"{BAKERY}:bread", "--handler", "tests.cli.shop:send"), "leave --handler out"),
        ((BAKERY, "tests.cli.async_bakery"), "bake is async def, and"),
        ((BAKERY, "--owner", "me", "--processes", "2"), "leave it out with --processes"),
        ((BAKERY, "--concurrency", "2", "--limit", "1"), "at least as large as --concurrency"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    run: Run, url: str, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = run("work", *arguments, "--url", url, "--drain")

    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
