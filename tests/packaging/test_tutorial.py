"""The tutorials, followed with the wheel in an environment that has nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.markdown import page
from tests.docs.test_howto import TUTORIALS, follow_tutorial

from .building import Built

# Building and installing download.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("framework", TUTORIALS)
def test_a_tutorial_works_with_what_it_installs(
    framework: str, built: Built, tmp_path: Path
) -> None:
    wheel = {"python3": sys.executable, "sa_jobqueue[": f"{built.wheel}["}

    follow_tutorial(page(TUTORIALS[framework]), tmp_path, installing=True, replaced=wheel)

    assert len(list((tmp_path / "mailbox").iterdir())) == 2
    assert list(tmp_path.glob(".venv/lib/*/site-packages/sa_jobqueue/queue.py"))
