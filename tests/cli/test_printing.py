"""Nothing that a row holds commands the terminal or forges a line, whatever command shows it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.control import pause, register_worker

from .conftest import Shell, add
from .depot import TABLES, Crate, Shelf
from .shop import Message

#: A window's title, the clipboard, a bell, a C1 code, a line of its own, another direction, markup.
HARM = "\x1b]0;me\x07\x9b31m\u202e\nforged"
MARKUP = "[/a][web]"

SHELVES, MESSAGES = "tests.cli.depot:shelves", "tests.cli.shop:Message"
KEY = f"{HARM},1"


@pytest.fixture
def harm(engine: Engine, tables: None) -> None:
    """Rows with such texts, wherever one can be stored."""
    add(engine, Shelf(hall=HARM, number=1), Shelf(hall="b", number=1, status=MARKUP))
    add(engine, Crate(id=1, status="failed", last_error=HARM + MARKUP))
    with Session(engine) as session, session.begin():
        claim(session, Shelf, owner=HARM + MARKUP)
        register_worker(session, HARM + MARKUP, [Shelf], stuck=HARM, tables=TABLES)
        pause(session, Shelf, tables=TABLES)


@pytest.mark.usefixtures("harm")
@pytest.mark.parametrize(
    "command",
    [
        ("status", SHELVES),
        ("failed", "tests.cli.depot:crates"),
        ("workers", SHELVES),
        ("health", SHELVES),
        ("request-stop", SHELVES, KEY, "b,1", "--yes"),
        ("release", SHELVES, KEY),
        ("release", SHELVES, KEY, "b,1", "--yes"),
        ("release", SHELVES, "--owner", HARM),
        ("retry", SHELVES, KEY, "--yes"),
        ("retry", SHELVES, KEY, "--yes", "--json"),
        ("reap", SHELVES, "--max-runtime", 0),
        ("doctor", SHELVES),
    ],
)
def test_no_command_passes_on_what_a_terminal_obeys(
    shell: Shell, command: tuple[object, ...]
) -> None:
    result = shell(*command)

    assert isinstance(result.exception, SystemExit | None)
    assert_harmless(result.output)


def assert_harmless(printed: str) -> None:
    for line in printed.splitlines():
        assert line.isprintable()
        assert not line.startswith("forged")


@pytest.mark.usefixtures("harm")
def test_a_worker_is_shown_by_its_whole_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    assert MARKUP in shell("workers", SHELVES).stdout


def test_an_errors_text_neither_commands_the_terminal_nor_forges_a_record(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.add(Message(recipient="a", max_attempts=1))
    monkeypatch.setattr("tests.cli.shop.NO", HARM)

    options = ("--handler", "tests.cli.shop:refuse", "--drain", "--log-level", "info")
    result = shell("work", MESSAGES, *options)

    assert "ValueError" in result.stderr
    assert_harmless(result.stderr)
