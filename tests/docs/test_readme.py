"""The README's commands are those of CI, and its code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .markdown import ROOT, code_blocks, page

DEMO = "python3 -m venv .venv && .venv/bin/pip install -e '.[cli]' && .venv/bin/sa-jobqueue demo"
TEST = "python3 -m venv .venv && .venv/bin/pip install tox && .venv/bin/tox"


def test_the_first_two_commands_are_the_demo_and_the_tests() -> None:
    readme = page("README.md")

    commands = [line for block in code_blocks(readme, "sh") for line in block.splitlines()]

    assert commands[:2] == [DEMO, TEST]


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    script = page(".ci/run")

    assert TEST in script


def test_the_code_of_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(code_blocks(page("README.md"), "python")), encoding="utf-8")

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "to anna@example.org",
        "to bert@example.org",
        "0 claims are free again",
    ]
