"""What a command works on, and what it refuses, in one line that says the way out."""

from __future__ import annotations

import sys
from datetime import timedelta
from math import inf
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import claim

# Inner: no server of the tests is a look-alike.
from sa_jobqueue.databases.sqlite import SQLite

from .conftest import Run, Shell, Start, add, finished, words
from .depot import Crate
from .shop import Message

MESSAGES, SEND = "tests.cli.shop:Message", ("--handler", "tests.cli.shop:send")
CRATES, IMPORTS, ENGINES = "tests.cli.depot:crates", "tests.cli.imports", "tests.cli.engines"
BREAD, AWAITED = "tests.cli.bakery:bread", "tests.cli.async_bakery"
WORK, STATUS = ("work", MESSAGES, *SEND, "--drain"), ("status", MESSAGES)

#: Commands of each kind.
COMMANDS = [WORK, STATUS, ("reap", MESSAGES), ("cancel", MESSAGES, 7, "--yes")]

NO_ENGINE = "is no Engine, AsyncEngine, sessionmaker or"


def at(url: str, target: str = MESSAGES) -> tuple[str, ...]:
    """Ask for the status of a queue in a database."""
    return ("status", target, "--url", url)


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
        (("work", "tests.cli.shop"), 1, "has no handler: declare one with @queue.handler"),
        (("work", "tests.cli.bakery:ideas"), 1, "has no handler: declare one with"),
        (("work", "tests.cli.bakery", *SEND), 1, "only with one queue that has none"),
        (("work", "tests.cli.films:cut", *SEND), 1, "steps have their own"),
        (("work", BREAD, *SEND), 1, "has a handler already: bake"),
        (("work", MESSAGES, "--handler", "tests.cli.shop:NOT_A_QUEUE"), 1, "a handler is a func"),
        (("work", BREAD, f"{AWAITED}:bread"), 1, "the same jobs"),
        (at("postgres://localhost/x"), 1, "postgresql+psycopg2://"),
        (at("postgresql://localhost:abc/x"), 1, "write the URL of a"),
        (at("postgresql+no_such://x"), 1, "no_such"),
        *(
            ((*command, *where), code, said)
            for command in COMMANDS
            for where, code, said in (
                (("--url", "nonsense"), 1, "write the URL of a data"),
                (("--url", "sqlite://"), 1, "in memory"),
                (("--url", "sqlite:///jobs.db"), 1, "there is no file jobs.db"),
                ((), 2, "or --engine MODULE:ENGINE, or set SA_JOBQUEUE_URL"),
                (("--url", "x", "--engine", "y:z"), 2, "give one of them, not both"),
            )
        ),
        *(
            ((*command, "--url", f"{driver}://127.0.0.1:1/x"), 1, said)
            for command in (WORK, STATUS)
            for driver, said in (
                ("postgresql+psycopg2", "Connection refused"),
                ("mysql+pymysql", "Can't connect"),
                ("mariadb+pymysql", "Can't connect"),
            )
        ),
        (at("postgresql+asyncpg://127.0.0.1:1/x"), 1, "onnect"),
        (at("mysql+aiomysql://127.0.0.1:1/x"), 1, "Can't connect"),
        (("work", BREAD, "--url", "mysql+aiomysql://127.0.0.1:1/x"), 1, "plain"),
        (("web", MESSAGES, "--url", "sqlite+aiosqlite:///x.db"), 1, "cannot be used here"),
        *(
            (("prune", MESSAGES, "--older-than", text), 2, "Invalid value for '--older-than'")
            for text in ("nan", "inf", "1e300", "-1", "soon")
        ),
        (("reap", MESSAGES, "--lease", "0"), 2, "Invalid value for '--lease'"),
        (("reap", MESSAGES, "--max-runtime", "-1"), 2, "Invalid value for '--max-runtime'"),
        (("failed", MESSAGES, "--limit", str(2**70)), 2, "Invalid value for '--limit'"),
        (("load", "status", "--log", "may"), 1, "there is no load in may"),
    ],
)
def test_without_a_database_nothing_is_done_and_no_file_is_made(
    run: Run,
    folder: Path,
    arguments: tuple[object, ...],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient = (timedelta(0), inf)  # the defaults of how long a worker tries again
    monkeypatch.setattr("sa_jobqueue.worker.transactions.Patience.__init__.__defaults__", impatient)

    result = run(*arguments)

    assert said in words(result)
    assert result.exit_code == code
    assert (len(result.output.splitlines()) == 1) is (code == 1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("retry", CRATES), 2, "name the jobs by their keys, or by --failed"),
        (("retry", CRATES, 1, "--failed"), 2, "name the jobs by their keys, or by --failed"),
        (("cancel", CRATES), 2, "name the jobs by their keys"),
        (("release", CRATES, 1, "--owner", "w"), 2, "by their keys, or by --owner"),
        (("reprioritize", CRATES, "--priority", 1), 2, "name the jobs by their keys"),
        (("cancel", CRATES, "x"), 1, "'x' is no key of Crate, which is id"),
        (("cancel", CRATES, "1,2"), 1, "'1,2' is no key of Crate, which is id"),
        (("pause", MESSAGES, "--yes"), 1, "control_tables(metadata)"),
        (("workers", MESSAGES), 1, "control_tables(metadata)"),
        (("request-stop", MESSAGES, 1, "--yes"), 1, "control_tables(metadata)"),
        (("schedules", CRATES, "--run", "weekly", "--yes"), 1, "there is no schedule 'weekly'"),
        (("schedules", MESSAGES), 1, "Schedules(metadata)"),
        (("load", f"{IMPORTS}:messages", "--log", "may", "--resume"), 1, "there is no load in may"),
        (("load", f"{IMPORTS}:messages", "--log", "may", "--rollback"), 1, "there is no load in m"),
        (("load", f"{IMPORTS}:NOT_A_SOURCE", "--log", "may"), 1, "neither a source nor a function"),
        (("load", f"{IMPORTS}:missing", "--log", "may"), 1, "has no 'missing'"),
        (("load", f"{IMPORTS}:no_file", "--log", "may"), 1, "No such file or directory: 'messages"),
        (("web", CRATES, "--host", "203.0.113.1"), 1, "cannot listen on 203.0.113.1:8000"),
        (("metrics", CRATES, "--host", "203.0.113.1"), 1, "cannot listen on 203.0.113.1:9100"),
        ((*STATUS, "--engine", f"{ENGINES}:create_engine"), 1, "missing 1 required positional"),
        ((*STATUS, "--engine", f"{ENGINES}:Unbound"), 1, NO_ENGINE),
        ((*STATUS, "--engine", f"{ENGINES}:URL"), 1, "with an engine, but of the class str"),
        (("work", BREAD, "--engine", f"{ENGINES}:Scoped"), 1, NO_ENGINE),
        ((*STATUS, "--engine", f"{ENGINES}:nothing"), 1, "has no 'nothing'"),
        (("web", MESSAGES, "--engine", f"{ENGINES}:async_engine"), 1, "give a synchronous"),
        (("metrics", MESSAGES, "--engine", f"{ENGINES}:async_engine"), 1, "cannot be used here"),
        (
            ("work", "tests.cli.bakery", "--engine", f"{ENGINES}:async_engine"),
            1,
            "cut is plain",
        ),
        (("work", AWAITED, "--engine", f"{ENGINES}:engine"), 1, "bake is async def, and sqlite is"),
    ],
)
def test_what_a_command_cannot_do_names_the_way_out(
    shell: Shell, command: tuple[object, ...], code: int, said: str
) -> None:
    claim_one_each(shell.engine)

    result = shell(*command)

    assert said in words(result)
    assert result.exit_code == code
    one_line = len(result.stderr.splitlines()) == 1
    assert one_line is (code == 1) or command[0] == "load"  # which tells its progress, too


@pytest.mark.parametrize(
    ("harm", "command", "said"),
    [
        ("DROP TABLE depot_pauses", ("pause", CRATES, "--yes"), "no table 'depot_pauses'"),
        ("DROP TABLE depot_workers", ("workers", CRATES), "no table 'depot_workers'"),
        ("DROP TABLE depot_stops", ("request-stop", CRATES, 1, "--yes"), "no table 'depot_stops'"),
        *(
            (harm, command, said)
            for command in (WORK, STATUS)
            for harm, said in (
                ("DROP TABLE message", "there is no table message, in sqlite:///"),
                ("ALTER TABLE message RENAME owner TO baker", "lacks columns of its model: owner"),
            )
        ),
    ],
)
def test_a_table_that_is_missing_or_lacks_columns_is_named(
    shell: Shell, harm: str, command: tuple[object, ...], said: str
) -> None:
    claim_one_each(shell.engine)
    with shell.engine.begin() as connection:
        connection.exec_driver_sql(harm)

    result = shell(*command)

    assert said in result.output
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


def claim_one_each(engine: Engine) -> None:
    """Insert a crate and a message, which somebody has claimed."""
    add(engine, Crate(id=1), Message(id=1, recipient="a"))
    with Session(engine) as session, session.begin():
        for entity in (Crate, Message):
            claim(session, entity, owner="w")


@pytest.mark.parametrize(
    ("missing", "command", "said"),
    [
        ("uvicorn", "web", "uvicorn is missing: pip install 'sa_jobqueue[web]'"),
        (
            "prometheus_client",
            "metrics",
            "prometheus_client is missing: pip install 'sa_jobqueue[prometheus]'",
        ),
    ],
)
def test_without_an_extra_a_command_says_what_to_install(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, missing: str, command: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    result = shell(command, CRATES)

    assert (result.exit_code, result.stderr.count("\n"), said in result.stderr) == (1, 1, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def (", "broken.py, line 1"),
        ("raise LookupError('no such shelf')", 'no such shelf; python -c "import broken" shows wh'),
    ],
)
def test_an_error_of_an_import_names_its_place_or_what_shows_it(
    run: Run, folder: Path, text: str, said: str
) -> None:
    (folder / "broken.py").write_text(text)

    result = run("status", "broken:Email")

    assert said in result.output
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


@pytest.fixture
def message(engine: Engine, tables: None) -> None:
    add(engine, Message(recipient="a"))


@pytest.mark.usefixtures("message")
def test_the_environment_names_the_database(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", shell.url)

    assert "unclaimed     1" in shell(*STATUS).stdout


def test_a_path_in_the_environment_may_have_a_space(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "a=sqlite:///my files/1.db b=sqlite:///2.db")

    output = run(*STATUS).output

    assert (
        "a: there is no file my files/1.db" in output,
        "b: there is no file 2.db" in output,
    ) == (
        True,
        True,
    )


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
    trusted = shell(*command, "--engine", f"{ENGINES}:trusted")

    assert "says that it is Unheard (3.40-Unheard-v1.2)" in refused.output
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "the write lock holds" in proved.output
    assert "call sa_jobqueue.assume_locks(engine)" in proved.output
    assert (proved.exit_code, trusted.exit_code) == (0, 0), trusted.output


def test_no_password_is_printed(run: Run, folder: Path) -> None:
    (folder / "jobs.db").touch()

    result = run(*at("sqlite:///file:jobs.db?uri=true&password=secret"))

    assert "there is no table message" in result.output
    assert "secret" not in result.output


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
