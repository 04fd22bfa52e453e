"""docs/adding-a-check.md, followed on a copy of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from .added import add_as_told, copied_package, run_copy, run_python
from .markdown import page

PAGE = page("docs/adding-a-check.md")

URL = "sqlite:///jobs.db"

CREATE = f"""
from sqlalchemy import create_engine, text
from shop import Base, Email

engine = create_engine("{URL}")
Base.metadata.create_all(engine)
"""

TRIGGER = """
with engine.begin() as connection:
    connection.execute(text("CREATE TRIGGER note UPDATE ON email BEGIN SELECT 1; END"))
"""

EXAMINE = """
from sa_jobqueue.doctor import examine

for finding in examine(engine, Email).findings:
    print(finding)
"""

MESSAGE = "the trigger note runs in every claim and every finish"
FIX = "fix: drop note, or make it fire on columns that claims do not write"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with the page's check, and a database of the user's."""
    copied_package(tmp_path)
    add_as_told(PAGE, tmp_path)
    run_python(tmp_path, CREATE)
    return tmp_path


def test_the_page_names_one_new_file_and_the_list(tmp_path: Path) -> None:
    names = add_as_told(PAGE, copied_package(tmp_path))

    assert names == ["sa_jobqueue/doctor/trigger_checks.py", "sa_jobqueue/doctor/check_list.py"]


def test_the_command_reports_what_an_added_check_finds(copy: Path) -> None:
    run_python(copy, CREATE + TRIGGER)

    result = run_copy(copy, "doctor", "shop:Email", "--url", URL)

    assert f"warning triggers  {MESSAGE}\n{'':<18}{FIX}" in result.stdout
    assert result.stdout.endswith("0 errors, 1 warning\n")
    assert result.returncode == 3, result.stderr


def test_the_command_reports_the_fact_of_an_added_check(copy: Path) -> None:
    result = run_copy(copy, "doctor", "shop:Email", "--url", URL)

    assert "ok      triggers  the table has no trigger" in result.stdout
    assert result.returncode == 0, result.stderr


def test_examine_returns_what_an_added_check_finds(copy: Path) -> None:
    printed = run_python(copy, CREATE + TRIGGER + EXAMINE)

    assert printed == f"warning [triggers] {MESSAGE}\n  {FIX}\n"
