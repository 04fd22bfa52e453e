"""``load``: begun, stopped, continued, rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, func

from sa_jobqueue.bulk import BulkLoad, FileLog
from tests.bulk.fakes import Numbers

from .conftest import Run, read
from .shop import Message

pytestmark = pytest.mark.usefixtures("tables")
SOURCE = "tests.cli.imports:messages"


def test_a_load_runs_is_rolled_back_and_cleaned(run: Run, url: str, engine: Engine) -> None:
    def load(*options: str) -> tuple[int, str, int]:
        result = run("load", SOURCE, "--log", "may", "--url", url, *options)
        return result.exit_code, result.stdout, read(engine, func.count(Message.id))[0]

    assert load() == (0, "CLEANING: 10 of 10 batches, 100 rows inserted\n", 100)
    assert load() == (0, "CLEANING: 10 of 10 batches, 100 rows inserted\n", 100)
    assert load("--rollback") == (0, "CANCELLED: 0 of 10 batches, 0 rows inserted\n", 0)
    assert load("--resume") == (0, "CANCELLED: 0 of 10 batches, 0 rows inserted\n", 0)
    assert "CANCELLED; --clean makes room" in run("load", SOURCE, "--log", "may").output
    assert load("--clean") == (0, "FINISHED: 0 batches, 0 rows inserted\n", 0)
    assert load()[2] == 100


def test_ctrl_c_stops_after_the_batch_and_says_how_to_go_on(
    run: Run, url: str, engine: Engine
) -> None:
    stopped = run("load", "tests.cli.imports:stopped_messages", "--log", "may", "--url", url)

    assert stopped.exit_code == 1
    assert "stopped. BLOCKED: " in stopped.stderr
    assert "--resume continues the load, --rollback deletes" in stopped.stderr
    done = read(engine, func.count(Message.id))[0] // 10
    assert 0 < done < 10
    told = run("load", "status", "--log", "may").stdout
    assert told == f"BLOCKED: {done} of 10 batches, {10 * done} rows inserted\n"
    refused = run("load", SOURCE, "--log", "may", "--url", url)
    assert (refused.exit_code, "BLOCKED; --resume" in refused.output) == (1, True)
    resumed = run("load", SOURCE, "--log", "may", "--url", url, "--resume")
    assert resumed.stdout == "CLEANING: 10 of 10 batches, 100 rows inserted\n"
    assert read(engine, func.count(Message.id))[0] == 100


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (SOURCE, ["--resume"], "there is no load in may"),
        (SOURCE, ["--rollback"], "there is no load in may"),
        ("tests.cli.imports:NOT_A_SOURCE", [], "neither a source nor a function"),
        ("tests.cli.imports:missing", [], "has no 'missing'"),
        ("tests.cli.imports:no_file", [], "No such file or directory: 'messages.csv'"),
    ],
)
def test_invalid_options_are_reported_in_one_line(
    run: Run, url: str, source: str, options: list[str], message: str
) -> None:
    result = run("load", source, "--log", "may", "--url", url, *options)

    assert result.exit_code == 1
    assert message in result.output


def test_an_error_is_one_line_that_says_how_to_go_on(run: Run, url: str) -> None:
    result = run("load", "tests.cli.imports:repeated", "--log", "may", "--url", url)

    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()[-1:]
    assert line.startswith("Error: UNIQUE constraint failed")
    assert line.endswith(
        "BLOCKED: 10 of 20 batches, 100 rows inserted; --resume continues the load, "
        "--rollback deletes what it has inserted"
    )


def test_a_load_that_is_under_way_is_left_alone(run: Run, url: str) -> None:
    refused: list[str] = []

    def meanwhile(progress: object) -> None:
        for options in ([], ["--resume"], ["--rollback"]):
            result = run("load", SOURCE, "--log", "may", "--url", url, *options)
            refused.append(result.output)

    BulkLoad(Numbers(3, 3), FileLog("may"), progress=meanwhile).run()

    assert len(refused) == 3
    assert all("another process works with the load in may" in output for output in refused)


def test_the_status_of_a_folder_that_is_not_there_is_an_error(run: Run, folder: Path) -> None:
    missing = run("load", "status", "--log", "may")
    (folder / "may").mkdir()
    empty = run("load", "status", "--log", "may")

    assert missing.exit_code == 1
    assert "there is no log in may: no such folder" in missing.output
    assert (empty.exit_code, empty.stdout) == (0, "STARTING: 0 batches, 0 rows inserted\n")


@pytest.mark.parametrize("name", ["numbers", "NUMBERS"])
def test_a_target_names_a_source_or_a_function_that_makes_it(run: Run, url: str, name: str) -> None:
    loaded = run("load", f"tests.cli.imports:{name}", "--log", "may", "--url", url)

    again = run("load", f"tests.cli.imports:{name}", "--log", "may", "--url", url, "--resume")
    assert loaded.stdout == "CLEANING: 4 of 4 batches, 10 rows inserted\n"
    assert "4/4 batches" in loaded.stderr
    assert "4/4 batches" in again.stderr  # although nothing is left to do
