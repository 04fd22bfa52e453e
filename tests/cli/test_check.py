"""sa-jobqueue check: prints stories, and its exit code tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.evidence.written import Written

Run = Callable[..., Result]


@pytest.fixture
def history(tmp_path: Path) -> Written:
    return Written(tmp_path)


def path_of(history: Written) -> str:
    (path,) = history.files()
    return str(path)


def test_a_sound_history_exits_with_0(run: Run, history: Written) -> None:
    history.claim("w1", 1)
    history.note("complete", "w1", 1)

    result = run("check", path_of(history), "--drained")

    assert (result.exit_code, result.output) == (0, "2 events of 1 rows: no faults\n")


def test_a_fault_is_told_as_a_story_and_exits_with_1(run: Run, history: Written) -> None:
    history.claim("w1", 1)
    history.claim("w2", 2, attempts=2)
    path = path_of(history)

    result = run("check", path)

    told = "14:00:0{0}.000000 claim          by w{0} of 14:00:0{0}.000000 attempt {0} committed"
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "one fence: email [7]: two claims have it at once",
        f"  {told.format(1)} ({path}:1)",
        f"  {told.format(2)} ({path}:3)",
        "2 events of 1 rows: 1 fault",
    ]


def test_of_many_faults_only_the_first_are_told(run: Run, history: Written) -> None:
    for key in range(5):
        history.claim("w1", 1, key=key)
        history.claim("w2", 2, key=key)

    result = run("check", path_of(history), "--most", "2")

    assert result.exit_code == 1
    assert result.output.splitlines()[-2:] == ["and 3 more", "10 events of 5 rows: 5 faults"]


def test_a_file_that_is_not_there_exits_with_2(run: Run, tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "none.jsonl"))

    assert result.exit_code == 2
    assert "cannot be read: No such file or directory" in result.output
