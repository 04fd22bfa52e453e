"""Tests that take the network and half a minute run only on demand: ``tox -e package``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from .building import FILES, FOLDERS, LITTER, NOT_OURS, ROOT, STAY, Built, run

HERE = Path(__file__).parent

#: What builds and installs.
DOWNLOADING = ("test_distributions.py", "test_tutorial.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave what downloads to those who name this folder on the command line."""
    if collection_path.name not in DOWNLOADING or any(map(_is_ours, config.args)):
        return None
    return True


def _is_ours(argument: str) -> bool:
    return Path(argument.partition("::")[0]).resolve().is_relative_to(HERE)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy this checkout, and put litter into the copy."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=NOT_OURS)
    for file in FILES:
        shutil.copy2(ROOT / file, copy / file)
    for name in LITTER:
        litter = copy / name
        litter.parent.mkdir(parents=True, exist_ok=True)
        litter.touch()
    return copy


@pytest.fixture(scope="session")
def built(checkout: Path) -> Built:
    """Build the sdist, and the wheel from the sdist; a release says where they stay."""
    folder = Path(os.environ.get(STAY, checkout / "dist"))
    said = run(sys.executable, "-m", "build", "--outdir", folder, cwd=checkout)
    (wheel,) = folder.glob("sa_jobqueue-*.whl")
    (sdist,) = folder.glob("sa_jobqueue-*.tar.gz")
    return Built(wheel=wheel, sdist=sdist, said=said)
