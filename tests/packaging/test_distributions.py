"""The wheel and the sdist, built from a lived-in checkout, hold what they should and no more."""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.docs.followed import part
from tests.docs.markdown import code_blocks, page

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
        *("--ignore", "tests/browser", "--ignore", "tests/brokers"),  # which need more
        cwd=unpacked,
    )

    assert " tests collected" in collected
    assert os.access(unpacked / ".ci" / "run", os.X_OK)


#: What the wheel brings without extras: four packages, and what they need.
NEEDED = {
    *("alembic", "psycopg2-binary", "pymysql", "sa-jobqueue", "sqlalchemy"),
    *("mako", "markupsafe", "typing-extensions"),
}

#: Print which of the installed packages an import loads.
LOADED = """
import sys
from importlib.metadata import packages_distributions
before = set(sys.modules)
import sa_jobqueue
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*loaded.intersection(packages_distributions()))
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_an_installed_wheel_works_without_the_extras_and_with_them(
    version: str, built: Built, tmp_path: Path
) -> None:
    scripts = new_environment(version, tmp_path)
    python, command = scripts / "python", scripts / "sa-jobqueue"

    run(python, "-m", "pip", "install", "--quiet", built.wheel, cwd=tmp_path)

    listed = re.findall(r"^[\w-]+", run(python, "-m", "pip", "freeze", cwd=tmp_path), re.M)
    assert {name.lower().replace("_", "-") for name in listed} == NEEDED
    loaded = run(python, "-W", "error", "-c", LOADED, cwd=tmp_path).split()
    assert set(loaded) == {"sa_jobqueue", "sqlalchemy", "typing_extensions"}
    first_queue = "\n".join(code_blocks(part(page("README.md"), "Your first queue"), "python"))
    (tmp_path / "first.py").write_text(first_queue, encoding="utf-8")
    assert run(python, "first.py", cwd=tmp_path) == "to anna@example.org\n"
    for call in ((python, "-m", "sa_jobqueue"), (command,)):
        said = run(*call, cwd=tmp_path, code=1)
        assert said == 'the command line needs click and rich: pip install "sa_jobqueue[cli]"\n'

    run(python, "-m", "pip", "install", "--quiet", f"{built.wheel}[cli]", cwd=tmp_path)

    assert "request-stop" in run(command, "--help", cwd=tmp_path)
    assert "request-stop" in run(python, "-m", "sa_jobqueue", "--help", cwd=tmp_path)


# Helpers


def new_environment(version: str, folder: Path) -> Path:
    """Make a virtual environment of a version of Python; return where its commands are."""
    python = f"python{version}"
    try:
        run(python, "-c", "import ensurepip, sqlite3", cwd=folder)
    except (AssertionError, FileNotFoundError):  # one of pyenv's may be there, and not work
        pytest.skip(f"no {python} with venv and sqlite3 is on PATH")
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    return folder / "venv" / "bin"


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
