"""``load``: begun, stopped, continued, rolled back."""

from __future__ import annotations

import pytest
from sqlalchemy import func

from sa_jobqueue.bulk import BulkLoad, FileLog
from tests.bulk.fakes import Numbers

from .conftest import Shell
from .shop import Message

SOURCE = "tests.cli.imports:messages"


def test_a_load_runs_is_rolled_back_and_cleaned(shell: Shell) -> None:
    def load(*options: str) -> tuple[int, str, int]:
        result = shell("load", SOURCE, "--log", "may", *options)
        return result.exit_code, result.stdout, shell.read(func.count(Message.id))[0]

    assert load() == (0, "CLEANING: 10 of 10 batches, 100 rows inserted\n", 100)
    assert load() == (0, "CLEANING: 10 of 10 batches, 100 rows inserted\n", 100)
    assert load("--rollback") == (0, "CANCELLED: 0 of 10 batches, 0 rows inserted\n", 0)
    assert load("--resume") == (0, "CANCELLED: 0 of 10 batches, 0 rows inserted\n", 0)
    assert "CANCELLED; --clean makes room" in shell("load", SOURCE, "--log", "may").output
    assert load("--clean") == (0, "FINISHED: 0 batches, 0 rows inserted\n", 0)
    assert load()[2] == 100


def test_ctrl_c_stops_after_the_batch_and_says_how_to_go_on(shell: Shell) -> None:
    stopped = shell("load", "tests.cli.imports:stopped_messages", "--log", "may")

    assert stopped.exit_code == 1
    assert "stopped. BLOCKED: " in stopped.stderr
    assert "--resume continues the load, --rollback deletes" in stopped.stderr
    done = shell.read(func.count(Message.id))[0] // 10
    assert 0 < done < 10
    told = shell("load", "status", "--log", "may").stdout
    assert told == f"BLOCKED: {done} of 10 batches, {10 * done} rows inserted\n"
    refused = shell("load", SOURCE, "--log", "may")
    assert (refused.exit_code, "BLOCKED; --resume" in refused.output) == (1, True)
    resumed = shell("load", SOURCE, "--log", "may", "--resume")
    assert resumed.stdout == "CLEANING: 10 of 10 batches, 100 rows inserted\n"
    assert shell.read(func.count(Message.id))[0] == 100


def test_an_error_is_one_line_that_says_how_to_go_on(shell: Shell) -> None:
    result = shell("load", "tests.cli.imports:repeated", "--log", "may")

    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()[-1:]
    assert line.startswith("Error: UNIQUE constraint failed")
    assert line.endswith(
        "BLOCKED: 10 of 20 batches, 100 rows inserted; --resume continues the load, "
        "--rollback deletes what it has inserted"
    )


def test_a_load_that_is_under_way_is_left_alone(shell: Shell) -> None:
    refused: list[str] = []

    def meanwhile(progress: object) -> None:
        for options in ([], ["--resume"], ["--rollback"]):
            result = shell("load", SOURCE, "--log", "may", *options)
            refused.append(result.output)

    BulkLoad(Numbers(3, 3), FileLog("may"), progress=meanwhile).run()

    assert len(refused) == 3
    assert all("Another manager works with the log" in output for output in refused)


@pytest.mark.parametrize("name", ["numbers", "NUMBERS"])
def test_a_target_names_a_source_or_a_function_that_makes_it(
    shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    loaded = shell("load", f"tests.cli.imports:{name}", "--log", "may")

    assert loaded.stdout == "CLEANING: 4 of 4 batches, 10 rows inserted\n"
    assert "INSERTING: 4 of 4 batches" in loaded.stderr  # the progress, in a terminal
