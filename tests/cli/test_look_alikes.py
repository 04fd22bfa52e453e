"""Commands on a server that says that it is another product."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_jobqueue.dialects.sqlite.database import SQLite

from .conftest import Run
from .shop import Base

MESSAGES = "tests.cli.shop:Message"

COMMANDS = [
    ("status", MESSAGES),
    ("reap", MESSAGES),
    ("work", MESSAGES, "--handler", "tests.cli.shop:send", "--drain"),
    ("doctor", MESSAGES),
]


@pytest.fixture(autouse=True)
def look_alike(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SQLite say that it is another product."""
    Base.metadata.create_all(engine)
    monkeypatch.setattr(SQLite, "product_question", "SELECT '3.40-Unheard-v1.2'")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_look_alike_is_refused_in_one_line(run: Run, url: str, command: tuple[str, ...]) -> None:
    result = run(*command, "--url", url)

    assert result.exit_code == 1
    assert "says that it is Unheard (3.40-Unheard-v1.2)" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_look_alike_is_served_with_assume_locks(
    run: Run, url: str, command: tuple[str, ...]
) -> None:
    result = run(*command, "--url", url, "--assume-locks")

    assert result.exit_code == 0, result.output


def test_the_locks_of_a_look_alike_are_proved_and_the_way_on_is_told(run: Run, url: str) -> None:
    result = run("doctor", "--locks", MESSAGES, "--url", url)

    assert result.exit_code == 0, result.output
    assert "the write lock holds" in result.output
    assert "call sa_jobqueue.assume_locks(engine)" in result.output
