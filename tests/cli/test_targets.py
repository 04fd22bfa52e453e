"""What a command works on: targets, and the database that nobody guesses; errors are one line."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from sa_jobqueue.dialects.sqlite import SQLite

from .conftest import Run, Start, add, finished, words
from .shop import Message

MESSAGES, SEND = "tests.cli.shop:Message", ("--handler", "tests.cli.shop:send")
NOWHERE = "127.0.0.1:1"
URL = ("--url", "sqlite:///jobs.db")
WORK = ("work", MESSAGES, *SEND, "--drain")

#: Commands of each kind.
COMMANDS = [WORK, ("status", MESSAGES), ("reap", MESSAGES), ("cancel", MESSAGES, 7, "--yes")]


@pytest.fixture
def message(engine: Engine, tables: None) -> None:
    add(engine, Message(recipient="a"))


@pytest.fixture
def engines(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a user's module with engines; return its name."""
    (folder / "engines_of_the_shop.py").write_text(
        f"""
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine({url!r})
Session = sessionmaker(engine)
Unbound = sessionmaker()
Scoped = scoped_session(Session)
async_engine = create_async_engine({url.replace("sqlite", "sqlite+aiosqlite", 1)!r})
AsyncSession = async_sessionmaker(async_engine)
"""
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "engines_of_the_shop", raising=False)
    return "engines_of_the_shop"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("status", "no_such_module:A"), 1, "ModuleNotFoundError: No module named 'no_such_"),
        (("status", "no_such_module"), 1, "in the current folder and on PYTHONPATH"),
        (("status", "jobs.py"), 1, "write a module as in an import"),
        (("work", "tests.cli.shop:Massage"), 1, "has no 'Massage'; did you mean 'Message'?"),
        (("sql", "tests.cli.shop:Missing", "--dialect", "sqlite"), 1, "there are tests.cli.shop:t"),
        (("status", "tests.cli.shop:send"), 1, "send is not a mapped class; the queues there are"),
        (("status", "tests.cli.shop:NOT_A_QUEUE"), 1, "7 is not a mapped class"),
        (("status", "tests.cli.records"), 1, "has no JobQueue and no workflow: name a class"),
        (("load", "tests.cli.shop", "--log", "x"), 1, "is not MODULE:NAME, as in shop.models:"),
        (("retry", "tests.cli.depot", 7), 2, "has several queues: name one, tests.cli.depot:cr"),
        (("work", "tests.cli.shop", *URL), 2, "tests.cli.shop:to_a has no handler: declare one"),
        (("work", "tests.cli.bakery:ideas"), 2, "MODULE:QUEUE, and give --handler MODULE:FUNC"),
        (("work", "tests.cli.bakery", *SEND), 2, "--handler is for one queue, not tests.cli.b"),
        (("work", "tests.cli.films:cut", *SEND), 2, "--handler is for one queue, not"),
        (("work", "tests.cli.bakery:bread", *SEND), 1, "has a handler already: bake"),
        (
            ("work", MESSAGES, "--handler", "tests.cli.shop:NOT_A_QUEUE"),
            1,
            "a handler is a function",
        ),
        (("work", "tests.cli.bakery:bread", "tests.cli.async_bakery:bread"), 1, "the same jobs"),
        *(((*command, "--url", "nonsense"), 1, "write the URL of a data") for command in COMMANDS),
        (("status", MESSAGES, "--url", "postgres://localhost/x"), 1, "postgresql+psycopg2://"),
        (("status", MESSAGES, "--url", "postgresql://localhost:abc/x"), 1, "write the URL of a"),
        (("status", MESSAGES, "--url", "postgresql+no_such://x"), 1, "no_such"),
        *(((*command, "--url", "sqlite://"), 1, "in memory") for command in COMMANDS),
        *(((*command, *URL), 1, "there is no file jobs.db") for command in COMMANDS),
        *(
            ((*command, "--url", f"{driver}://{NOWHERE}/x"), 1, said)
            for command in COMMANDS[:2]
            for driver, said in (
                ("postgresql+psycopg2", "Connection refused"),
                ("mysql+pymysql", "Can't connect"),
                ("mariadb+pymysql", "Can't connect"),
            )
        ),
        (("status", MESSAGES, "--url", f"postgresql+asyncpg://{NOWHERE}/x"), 1, "onnect"),
        (("status", MESSAGES, "--url", f"mysql+aiomysql://{NOWHERE}/x"), 1, "Can't connect"),
        (("work", "tests.cli.bakery:bread", "--url", f"mysql+aiomysql://{NOWHERE}/x"), 1, "plain"),
        (("web", MESSAGES, "--url", "sqlite+aiosqlite:///x.db"), 1, "there is no file x.db"),
        *(
            (command, 2, "Give --url URL or --engine MODULE:ENGINE, or set SA_J")
            for command in COMMANDS
        ),
        *(
            ((*command, "--url", "x", "--engine", "y:z"), 2, "give one of them")
            for command in COMMANDS
        ),
        *(
            (("prune", MESSAGES, "--older-than", text), 2, "Invalid value for '--older-than'")
            for text in ("nan", "inf", "1e300", "-1", "soon")
        ),
        (("reap", MESSAGES, "--lease", "0"), 2, "Invalid value for '--lease'"),
        (("reap", MESSAGES, "--max-runtime", "-1"), 2, "Invalid value for '--max-runtime'"),
        (("failed", MESSAGES, "--limit", str(2**70)), 2, "Invalid value for '--limit'"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_says_the_way_out(
    run: Run,
    folder: Path,
    arguments: tuple[object, ...],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(0))

    result = run(*arguments)

    assert said in words(result)
    assert result.exit_code == code
    assert (len(result.output.splitlines()) == 1) is (code == 1)
    assert list(folder.iterdir()) == []  # no file was made


@pytest.mark.usefixtures("message")
def test_the_environment_names_the_database(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", url)

    assert "unclaimed │    1" in run("status", MESSAGES).stdout


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (WORK, "engine"),
        (WORK, "Session"),
        (("work", "tests.cli.async_bakery:awaited_bread", "--drain"), "async_engine"),
        (("work", "tests.cli.async_bakery:bread", "--drain"), "AsyncSession"),
        *((command, name) for command in COMMANDS[1:] for name in ("engine", "AsyncSession")),
        (COMMANDS[1], "Session"),
        (COMMANDS[1], "async_engine"),
    ],
)
def test_the_applications_own_engine_serves_each_command_also_beside_the_environment(
    run: Run, engines: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "sqlite:///another.db")

    result = run(*command, "--engine", f"{engines}:{name}")

    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        (("status", MESSAGES), "create_engine", "is no Engine, AsyncEngine, sessionmaker or"),
        (("status", MESSAGES), "Unbound", "is no Engine, AsyncEngine, sessionmaker or"),
        (("work", "tests.cli.bakery:bread"), "Scoped", "is no Engine, AsyncEngine, sessionmaker"),
        (("status", MESSAGES), "nothing", "has no 'nothing'"),
        (("web", MESSAGES), "async_engine", "for asyncio cannot be used here: give a synchronous"),
        (("metrics", MESSAGES), "async_engine", "for asyncio cannot be used here"),
        (("work", "tests.cli.bakery"), "async_engine", "cut is plain, and sqlite+aiosqlite is for"),
        (("work", "tests.cli.async_bakery"), "engine", "bake is async def, and sqlite is not for"),
    ],
)
def test_an_engine_that_cannot_serve_is_one_line(
    run: Run, engines: str, command: tuple[str, ...], name: str, said: str
) -> None:
    result = run(*command, "--engine", f"{engines}:{name}")

    assert said in result.output
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "broken.py, line 1"),
        ("\n\nraise LookupError('no such shelf')", "no such shelf ({folder}/broken.py, line 3)"),
        ("import os\n\nos.environ['NO_SUCH_VARIABLE']", "NO_SUCH_VARIABLE ({folder}/broken.py, li"),
    ],
)
def test_an_error_of_an_import_names_its_place(
    run: Run, folder: Path, text: str, said: str
) -> None:
    (folder / "broken.py").write_text(text)

    result = run("status", "broken:Email")

    assert said.format(folder=folder) in result.output
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


@pytest.mark.parametrize("command", [WORK, ("status", MESSAGES)])
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT 1", "there is no table 'message' in sqlite:///"),
        (
            "CREATE TABLE message (id INTEGER, recipient TEXT, status TEXT)",
            "lacks columns of its model: owner, owner_date",
        ),
    ],
)
def test_a_table_that_is_missing_or_lacks_columns_is_one_line(
    run: Run, url: str, engine: Engine, command: tuple[str, ...], statement: str, said: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)

    result = run(*command, "--url", url)

    assert said in result.output
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


@pytest.mark.usefixtures("message")
@pytest.mark.parametrize("command", [WORK, ("status", MESSAGES), ("doctor", MESSAGES)])
def test_a_look_alike_is_refused_in_one_line_until_its_locks_are_proved_and_trusted(
    run: Run, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLite, "product_question", "SELECT '3.40-Unheard-v1.2'")

    refused = run(*command, "--url", url)
    proved = run("doctor", "--locks", MESSAGES, "--url", url)
    trusted = run(*command, "--url", url, "--assume-locks")

    assert "says that it is Unheard (3.40-Unheard-v1.2)" in refused.output
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "the write lock holds" in proved.output
    assert "call sa_jobqueue.assume_locks(engine)" in proved.output
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
