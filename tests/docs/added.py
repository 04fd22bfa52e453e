"""A copy of the package, to which a test adds code as a page of docs/ tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .markdown import ROOT

PACKAGE = "sa_jobqueue"

#: A user's module, written as shop.py.
SHOP = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sa_jobqueue import JobMixin


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)
"""

_FILE = re.compile(r"`([\w/.-]+)`:\n\n```(python|diff)\n(.*?)^```", re.M | re.S)


def copied_package(folder: Path) -> Path:
    """Copy the package into a folder, beside a user's module, and return the folder."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def add_as_told(page: str, folder: Path) -> list[str]:
    """Write the new files of a page, and make its changes; return the names of both.

    A file is a block of code below a line with its name: Python is a new file, a diff
    changes a file that is there.
    """
    names = []
    for name, language, code in _FILE.findall(page):
        path = folder / name
        if language == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), code), encoding="utf-8")
        else:
            assert not path.exists(), f"{name} is there already"
            path.write_text(code, encoding="utf-8")
        names.append(name)
    return names


def changed(text: str, diff: str) -> str:
    """Make the changes of a diff, whose hunks show each line that they need in full."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if not line.startswith("+"))
        after = "".join(line[1:] for line in lines if not line.startswith("-"))
        assert text.count(before) == 1, f"not found, or more than once: {before}"
        text = text.replace(before, after)
    return text


def run_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sa-jobqueue`` of the copy, in its folder."""
    return subprocess.run(
        [sys.executable, "-m", PACKAGE, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_python(folder: Path, code: str) -> str:
    """Run code with the copy, in its folder; return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout
