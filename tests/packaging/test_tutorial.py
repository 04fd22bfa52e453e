"""The tutorial, followed with the wheel in an environment that has nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.test_howto import FRAMEWORKS, follow_tutorial, tutorial_with

from .building import Built

# Building and installing download.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_tutorial_works_with_what_it_installs(
    framework: str, built: Built, tmp_path: Path
) -> None:
    wheel = {"python3": sys.executable, "sa_jobqueue[": f"{built.wheel}["}

    follow_tutorial(tutorial_with(framework), tmp_path, installing=True, replaced=wheel)

    assert len(list((tmp_path / "mailbox").iterdir())) == 2
    assert list(tmp_path.glob(".venv/lib/*/site-packages/sa_jobqueue/queue.py"))
