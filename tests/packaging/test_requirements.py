"""The package imports only what it needs; tox tests the oldest versions that setup.cfg promises."""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: ``SQLAlchemy>=2.0.30`` and ``SQLAlchemy==2.0.30; python_version < "3.13"``
_LINE = re.compile(r"^(?P<name>[\w-]+)(?:>=|==)(?P<version>[\d.]+)", re.M)


def read(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / name, encoding="utf-8")
    return parser


def versions_promised() -> dict[str, str]:
    """Read from setup.cfg the oldest version of each dependency.

    What builds the site of the pages is no dependency of the library: the newest versions do.
    """
    setup = read("setup.cfg")
    extras = dict(setup["options.extras_require"])
    del extras["docs"]
    sections = [setup["options"]["install_requires"], *extras.values()]
    return dict(_LINE.findall("\n".join(sections)))


def versions_tested() -> dict[str, set[str]]:
    """Read from tox.ini which versions the environment `minimum` has."""
    versions: dict[str, set[str]] = {}
    for name, version in _LINE.findall(read("tox.ini")["testenv:minimum"]["deps"]):
        versions.setdefault(name, set()).add(version)
    return versions


def test_every_promised_dependency_is_tested() -> None:
    assert versions_promised().keys() <= versions_tested().keys()


@pytest.mark.parametrize("name", versions_promised())
def test_the_oldest_version_promised_is_tested(name: str) -> None:
    assert without_zeros(versions_promised()[name]) in map(without_zeros, versions_tested()[name])


#: The first versions without faults that were known in November 2026; `tox -e audit` asks anew.
SAFE = {
    "PyMySQL": "1.1.1",  # CVE-2024-36039
    "cryptography": "50.0.0",  # CVE-2026-69247, CVE-2026-39892, CVE-2026-26007
    "h11": "0.16.0",  # CVE-2025-43859
    "jinja2": "3.1.6",  # CVE-2025-27516
    "starlette": "1.3.1",  # CVE-2025-62727, CVE-2026-48710, PYSEC-2026-248
}


@pytest.mark.parametrize("name", SAFE)
def test_no_promised_version_has_a_fault_that_is_known(name: str) -> None:
    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert numbers(versions_promised()[name]) >= numbers(without_zeros(SAFE[name]))


def without_zeros(version: str) -> str:
    """Write 1.13.0 and 1.13 alike."""
    return re.sub(r"(\.0)+$", "", version)


NOT_NEEDED = (
    *("alembic", "click", "cronsim", "cryptography", "psycopg2", "pymysql", "rich"),
    *("jinja2", "starlette", "uvicorn"),
)


def test_the_package_imports_sqlalchemy_and_nothing_else_that_is_installed() -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED!r}))"

    imported = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{hide}; import sa_jobqueue"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (imported.returncode, imported.stderr) == (0, "")
