"""docs/adding-a-command.md, followed on a copy of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from .added import add_as_told, copied_package, run_copy, run_python
from .markdown import page

PAGE = page("docs/adding-a-command.md")

FILL = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from shop import Base, Email

engine = create_engine("sqlite:///jobs.db")
Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    session.add_all([Email(), Email(status="cancelled"), Email(status="cancelled")])
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, beside a user's module."""
    return copied_package(tmp_path)


def test_the_page_names_one_new_file_and_the_list(copy: Path) -> None:
    names = add_as_told(PAGE, copy)

    assert names == ["sa_jobqueue/cli/cancelled.py", "sa_jobqueue/cli/__init__.py"]


def test_a_command_added_as_on_the_page_runs(copy: Path) -> None:
    add_as_told(PAGE, copy)
    run_python(copy, FILL)

    result = run_copy(copy, "cancelled", "shop:Email", "--url", "sqlite:///jobs.db")

    assert (result.stdout, result.stderr, result.returncode) == ("2\n3\n", "", 0)


def test_an_added_command_is_listed_by_help(copy: Path) -> None:
    add_as_told(PAGE, copy)

    result = run_copy(copy, "--help")

    assert "Print the keys of the cancelled jobs of MODULE:QUEUE." in result.stdout


def test_an_added_command_reports_an_error_in_one_line(copy: Path) -> None:
    add_as_told(PAGE, copy)
    run_python(copy, "import sqlite3; sqlite3.connect('jobs.db').close()")

    result = run_copy(copy, "cancelled", "shop:Email", "--url", "sqlite:///jobs.db")

    assert result.returncode == 1
    assert result.stderr.startswith("Error: there is no table 'email' in sqlite:///")
    assert len(result.stderr.splitlines()) == 1
