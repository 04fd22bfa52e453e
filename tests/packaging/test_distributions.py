"""The wheel and the sdist, built from a lived-in checkout, hold what they should and no more."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import venv
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

import pytest

from .building import FILES, FOLDERS, LITTER, Built, run

# Building and installing download.
pytestmark = pytest.mark.timeout(600)


def test_the_build_gives_no_warning(built: Built) -> None:
    assert re.findall(r".*(?:warning|deprecat).*", built.said, re.I) == []


def test_the_wheel_holds_the_package_and_nothing_else(built: Built, checkout: Path) -> None:
    information, package = split(ZipFile(built.wheel).namelist(), by=".dist-info/")

    assert package == files_in(checkout, "sa_jobqueue")
    assert "sa_jobqueue/py.typed" in package
    assert {name.partition("/")[2] for name in information} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"),
        "licenses/LICENSE",
    }


def test_the_sdist_holds_what_a_checkout_holds(built: Built, checkout: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [member.name for member in archive if member.isfile()]
    top = built.sdist.name.removesuffix(".tar.gz")

    _, inside = split((name.removeprefix(f"{top}/") for name in names), by=".egg-info/")

    assert inside == {*files_in(checkout, *FOLDERS), *FILES, "PKG-INFO"}


def test_the_tests_can_be_run_from_the_sdist(built: Built, tmp_path: Path) -> None:
    # Not shutil: Debian 12's Python 3.11.2 does not know `filter`, and Python 3.12 asks for it.
    run("tar", "-xzf", built.sdist, cwd=tmp_path)
    (unpacked,) = tmp_path.iterdir()

    collected = run(
        *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"),
        *("--ignore", "tests/browser"),  # which needs playwright
        cwd=unpacked,
    )

    assert " tests collected" in collected
    assert os.access(unpacked / ".ci" / "run", os.X_OK)


def test_an_installed_wheel_works_without_the_extras_and_with_them(
    built: Built, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / "bin"
    python, command = scripts / "python", scripts / "sa-jobqueue"

    run(python, "-m", "pip", "install", "--quiet", built.wheel, cwd=tmp_path)

    assert run(python, "-W", "error", "-c", "import sa_jobqueue", cwd=tmp_path) == ""
    for call in ((python, "-m", "sa_jobqueue"), (command,)):
        said = run(*call, cwd=tmp_path, code=1)
        assert said == 'the command line needs click and rich: pip install "sa_jobqueue[cli]"\n'

    run(python, "-m", "pip", "install", "--quiet", f"{built.wheel}[cli]", cwd=tmp_path)

    assert "request-stop" in run(command, "--help", cwd=tmp_path)
    assert "request-stop" in run(python, "-m", "sa_jobqueue", "--help", cwd=tmp_path)


# Helpers


def split(names: Iterable[str], *, by: str) -> tuple[set[str], set[str]]:
    """Divide names into those that hold a text, and the others."""
    everything = set(names)
    holding = {name for name in everything if by in name}
    return holding, everything - holding


def files_in(checkout: Path, *folders: str) -> set[str]:
    """Name the files that belong to folders of the checkout."""
    found = (path for folder in folders for path in (checkout / folder).rglob("*"))
    names = {str(path.relative_to(checkout)) for path in found if path.is_file()}
    return names.difference(LITTER)
