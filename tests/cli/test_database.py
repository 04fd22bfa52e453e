"""Which database a command works on: nobody guesses it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.cli.conftest import Run
from tests.cli.records import ends
from tests.cli.shop import Base, Message

MESSAGES = "tests.cli.shop:Message"

COMMANDS = [
    ("work", MESSAGES, "--handler", "tests.cli.shop:send", "--drain"),
    ("status", MESSAGES),
    ("reap", MESSAGES),
    ("doctor", MESSAGES),
]

ENGINES = """
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_engine({url!r})
for_asyncio = create_async_engine("sqlite+aiosqlite:///jobs.db")
"""


@pytest.fixture
def message(engine: Engine) -> None:
    """Add a message."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Message(recipient="a"))
        session.commit()


@pytest.fixture
def module(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a user's module with engines; return its name."""
    name = "engines_of_the_shop"
    (folder / f"{name}.py").write_text(ENGINES.format(url=url))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_without_a_database_says_how_to_name_one(
    run: Run, folder: Path, command: tuple[str, ...]
) -> None:
    result = run(*command)

    assert result.exit_code == 2
    for way in ("--url URL", "--engine MODULE:ENGINE", "SA_JOBQUEUE_URL"):
        assert way in result.output
    assert list(folder.iterdir()) == []  # no file was made


@pytest.mark.usefixtures("message")
def test_the_environment_names_the_database(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", url)

    result = run("work", MESSAGES, "--handler", "tests.cli.shop:send", "--drain", "--log-json")

    assert ends(result) == [(1, "sent")]


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_applications_own_engine_is_used_also_beside_the_environment(
    run: Run, module: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "sqlite:///another.db")

    result = run(*command, "--engine", f"{module}:engine")

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "sqlite:///jobs.db", "--engine", "{}:engine"), "give one of them"),
        (("--engine", "{}:create_engine"), "is no Engine"),
        (("--engine", "{}:for_asyncio"), "for asyncio cannot be used here"),
        (("--engine", "{}:nothing"), "has no 'nothing'"),
    ],
)
def test_an_engine_that_cannot_serve_is_one_line(
    run: Run, module: str, options: tuple[str, ...], said: str
) -> None:
    result = run("status", MESSAGES, *(option.format(module) for option in options))

    assert result.exit_code != 0
    assert said in result.output
