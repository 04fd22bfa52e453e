"""Type checkers find no error in a user's file, and infer the types that it states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).with_name("api.py")
ROOT = API.parents[2]

#: Without the project's own settings, and with a cache that is not the project's.
MYPY = ("mypy", "--strict", "--config-file=", "--cache-dir=.mypy_cache/types")


def check(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker of this Python at the root of the checkout."""
    pytest.importorskip(command[0])
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_mypy_finds_no_error_in_a_users_file_and_every_mistake_that_it_marks() -> None:
    checked = check(*MYPY, str(API), str(API.with_name("mistakes.py")))

    assert checked.stdout == "Success: no issues found in 2 source files\n", checked


def test_pyright_finds_no_error_in_a_users_file() -> None:
    checked = check("pyright", "--pythonpath", sys.executable, str(API))

    assert "0 errors, 0 warnings" in checked.stdout, checked
