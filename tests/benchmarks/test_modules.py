"""A benchmark runs by the name of its module, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.__main__ import main
from tests.docs.markdown import ROOT


@pytest.mark.parametrize("name", sorted(main.commands))
def test_a_benchmark_runs_by_the_name_of_its_module(name: str) -> None:
    told = run_module(f"benchmarks.{name}", "--help")

    assert told.startswith(f"Usage: python -m benchmarks.{name} [OPTIONS]\n")


def run_module(*arguments: str) -> str:
    """Run a module by ``python -m``; return what it prints."""
    command = [sys.executable, "-m", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout
