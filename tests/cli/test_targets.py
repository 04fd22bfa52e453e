"""What a command works on: a database that nobody guesses, the user's engine, a module."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

# Inner: no server of the tests is a look-alike.
from sa_jobqueue.dialects.sqlite import SQLite

from .conftest import Run, Shell, Start, add, finished
from .shop import Message
from .test_refusals import COMMANDS, ENGINES, MESSAGES, STATUS, WORK


@pytest.fixture
def message(engine: Engine, tables: None) -> None:
    add(engine, Message(recipient="a"))


@pytest.mark.usefixtures("message")
def test_the_environment_names_the_database(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", shell.url)

    assert "unclaimed │    1" in shell(*STATUS).stdout


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (WORK, "engine"),
        (WORK, "Session"),
        (("work", "tests.cli.async_bakery:awaited_bread", "--drain"), "async_engine"),
        (("work", "tests.cli.async_bakery:bread", "--drain"), "AsyncSession"),
        *((command, name) for command in COMMANDS[1:] for name in ("engine", "AsyncSession")),
        (STATUS, "Session"),
        (STATUS, "async_engine"),
    ],
)
def test_the_applications_own_engine_serves_each_command_also_beside_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "sqlite:///another.db")

    result = run(*command, "--engine", f"{ENGINES}:{name}")

    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize("command", [WORK, STATUS, ("doctor", MESSAGES)])
def test_a_look_alike_is_refused_in_one_line_until_its_locks_are_proved_and_trusted(
    shell: Shell, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLite, "product_question", "SELECT '3.40-Unheard-v1.2'")

    refused = shell(*command)
    proved = shell("doctor", "--locks", MESSAGES)
    trusted = shell(*command, "--assume-locks")

    assert "says that it is Unheard (3.40-Unheard-v1.2)" in refused.output
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "the write lock holds" in proved.output
    assert "call sa_jobqueue.assume_locks(shell.engine)" in proved.output
    assert (proved.exit_code, trusted.exit_code) == (0, 0), trusted.output


def test_help_shows_the_daily_commands_first(run: Run) -> None:
    titles = [line for line in run("--help").stdout.splitlines() if line.endswith(":")]

    assert titles == ["Options:", "Work:", "See:", "Change:", "More:"]


def test_the_current_directory_is_importable_for_the_console_script(
    start: Start, folder: Path
) -> None:
    (folder / "mine.py").write_text("")
    script = folder / "scripts" / "sa-jobqueue"
    script.parent.mkdir()
    script.write_text("from sa_jobqueue.__main__ import main\nmain()\n")

    _, _, errors = finished(start("status", "mine:Email", python=(str(script),)))

    assert errors == "Error: 'mine' has no 'Email'\n"
