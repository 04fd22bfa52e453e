"""Errors are one line, and exit code 1."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from .conftest import Run, Start, finished
from .test_work import MESSAGES, SEND

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("no_such_module:Email", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("tests.cli.shop:Massage", "has no 'Massage'; did you mean 'Message'?"),
        ("tests.cli.shop:Missing", "'tests.cli.shop' has no 'Missing'; it has tests.cli.shop:to_a"),
        ("tests.cli.shop:send", "send is not a mapped class; the queues there are tests.cli.shop:"),
        ("tests.cli.bakery:bake", "bake is not a mapped class: it handles tests.cli.bakery:bread"),
        ("tests.cli.shop:NOT_A_QUEUE", "7 is not a mapped class"),
        ("tests.cli.shop:Base", "is not a mapped class"),
    ],
)
def test_a_target_that_is_no_queue_is_one_line(run: Run, queue: str, said: str) -> None:
    commands = (
        ("work", queue, "--handler", SEND),
        ("sql", queue, "--dialect", "sqlite"),
        ("status", queue),
    )
    for command in commands:
        assert_one_line(run(*command), said)


@pytest.mark.parametrize(
    "command",
    [
        *(("prune", "--older-than", text) for text in ("nan", "inf", "1e300", "-1", "soon")),
        *(("reap", "--lease", text) for text in ("nan", "1e300", "0")),
        ("reap", "--limit", str(2**70)),
        ("failed", "--limit", str(2**70)),
    ],
)
def test_a_number_that_no_database_takes_is_refused(run: Run, command: tuple[str, ...]) -> None:
    name, option, text = command

    result = run(name, MESSAGES, option, text)

    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr


def test_a_target_without_a_name_is_one_line(run: Run) -> None:
    assert_one_line(run("reap", "nothing"), "is not MODULE:NAME, as in shop.models:Email")
    assert_one_line(
        run("reap", "tests.cli.shop"), "is not MODULE:NAME, such as tests.cli.shop:to_a"
    )


def test_a_target_that_is_no_handler_is_one_line(run: Run) -> None:
    assert_one_line(
        run("work", MESSAGES, "--handler", "tests.cli.shop:NOT_A_QUEUE"), "is no function, but 7"
    )


def test_a_module_that_does_not_compile_is_one_line(run: Run, folder: Path) -> None:
    (folder / "broken_module.py").write_text("def (")

    assert_one_line(run("status", "broken_module:Email"), "broken_module.py, line 1")


@pytest.mark.parametrize("installed", [False, True])
def test_an_error_of_an_import_names_its_place(
    run: Run, folder: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:  # as an application in site-packages is
        monkeypatch.setattr("sa_jobqueue.cli.targets.INSTALLED", (str(folder),))
    (folder / "first_module.py").write_text("import second_module")
    (folder / "second_module.py").write_text("\n\nraise LookupError('no such shelf')")

    assert_one_line(
        run("status", "first_module:Email"), "no such shelf", "second_module.py, line 3"
    )


def test_an_error_that_python_raises_names_the_users_line(run: Run, folder: Path) -> None:
    (folder / "asking_module.py").write_text("import os\n\nos.environ['NO_SUCH_VARIABLE']")

    assert_one_line(run("status", "asking_module:Email"), "asking_module.py, line 3")


@pytest.mark.parametrize("target", ["jobs.py", "./jobs.py", "no_such_module"])
def test_a_mistyped_module_names_the_way_out(run: Run, folder: Path, target: str) -> None:
    (folder / "jobs.py").touch()

    said = "as in an import" if "jobs" in target else "in the current folder and on PYTHONPATH"
    assert_one_line(run("work", target), said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "write the URL of a database as in postgresql+psycopg2://"),
        ("postgresql+psycopg2://me@localhost:abc/x", "write the URL of a database as in"),
        ("postgres://localhost/x", "postgresql+psycopg2://"),
        ("sqlite://", "in memory"),
        ("sqlite:///missing.db", "there is no file missing.db"),
        (f"postgresql+psycopg2://{NOWHERE}/x", "Connection refused"),
        (f"mysql+pymysql://{NOWHERE}/x", "Can't connect"),
        (f"mariadb+pymysql://{NOWHERE}/x", "Can't connect"),
    ],
)
def test_a_missing_database_is_one_line(
    run: Run, url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(0))

    for command in (("status",), ("start-processing",), ("work", MESSAGES, "--handler", SEND)):
        assert_one_line(run(*command, "--url", url), said)


@pytest.mark.parametrize(
    "driver", ["sqlite+aiosqlite", "postgresql+asyncpg", "mysql+aiomysql", "mariadb+asyncmy"]
)
def test_a_driver_for_asyncio_is_refused_in_one_line(run: Run, driver: str) -> None:
    pytest.importorskip(driver.partition("+")[2])
    url = f"{driver}://{NOWHERE}/x" if "sqlite" not in driver else f"{driver}:///x.db"

    for command in (("status",), ("reap", MESSAGES), ("doctor", MESSAGES)):
        assert_one_line(
            run(*command, "--url", url), "for asyncio cannot be used here: give a synchronous one"
        )


def test_no_empty_file_is_left_behind(run: Run, folder: Path) -> None:
    run("status", "--url", "sqlite:///missing.db")

    assert list(folder.iterdir()) == []


def test_a_missing_table_is_one_line(run: Run, folder: Path) -> None:
    (folder / "empty.db").touch()

    result = run("work", MESSAGES, "--handler", SEND, "--url", "sqlite:///empty.db")

    assert_one_line(result, "there is no table 'message'")


@pytest.mark.parametrize("command", [("work", "--handler", SEND), ("status",), ("failed",)])
def test_a_table_that_lacks_columns_of_its_model_is_one_line(
    run: Run, url: str, engine: Engine, command: tuple[str, ...]
) -> None:
    name, *options = command
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE message (id INTEGER, recipient TEXT, status TEXT)")

    result = run(name, MESSAGES, *options, "--url", url)

    assert_one_line(result, "lacks columns of its model: owner, owner_date", "alembic upgrade head")


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_says_how_to_install_it(start: Start, missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None"
    without = f"{hide}; from sa_jobqueue.__main__ import main; main()"

    code, _, errors = finished(start(python=("-c", without)))

    assert code == 1
    assert errors == 'the command line needs click and rich: pip install "sa_jobqueue[cli]"\n'


def test_the_current_directory_is_importable_for_the_console_script(
    start: Start, folder: Path
) -> None:
    (folder / "mine.py").write_text("")
    script = folder / "scripts" / "sa-jobqueue"
    script.parent.mkdir()
    script.write_text("from sa_jobqueue.__main__ import main\nmain()\n")

    _, _, errors = finished(start("status", "mine:Email", python=(str(script),)))

    assert errors == "Error: 'mine' has no 'Email'\n"


def assert_one_line(result: object, *said: str) -> None:
    output = getattr(result, "output", "")
    assert [text for text in said if text not in output] == []
    assert output.startswith("Error: ")
    assert len(output.splitlines()) == 1
    assert getattr(result, "exit_code", None) == 1
