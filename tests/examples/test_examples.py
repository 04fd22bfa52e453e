"""Every example runs as a user would run it, and prints what its last lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.servers import DATABASES

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

#: ``# Output:``, or ``# Output on mysql, mariadb:``, an empty comment, and the lines.
_BLOCK = re.compile(r"^# Output(?: on (?P<databases>[\w, ]+))?:\n#\n(?P<lines>(?:#.*\n)+)", re.M)

#: ``# Run by the tests on postgresql with: --rows 100``; either part may be missing.
_HOW = re.compile(
    r"^# Run by the tests(?: on (?P<databases>[\w, ]+?))?(?: with: (?P<with>.+))?$", re.M
)


def how(example: Path) -> tuple[list[str], list[str]]:
    """Read from an example which databases it runs on (by default all), and its options."""
    found = _HOW.search(example.read_text(encoding="utf-8"))
    if found is None:
        return [], []
    return re.findall(r"\w+", found["databases"] or ""), (found["with"] or "").split()


def run(example: Path, *arguments: str) -> str:
    """Run an example in a process of its own; return what it prints."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    finished = subprocess.run(
        [sys.executable, str(example), *how(example)[1], *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,  # on an idle machine examples take seconds
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def promised(example: Path, database: str) -> str:
    """Read from an example's end what it prints on a database."""
    outputs = {}
    for block in _BLOCK.finditer(example.read_text(encoding="utf-8")):
        lines = block["lines"].splitlines()
        text = "".join(f"{line.removeprefix('#').removeprefix(' ')}\n" for line in lines)
        outputs.update({name.strip(): text for name in (block["databases"] or "").split(",")})
    return outputs.get(database, outputs[""])


def test_the_page_of_examples_names_each_example() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")

    named = set(re.findall(r"\]\((\w+\.py)\)", listed))

    assert named == {example.name for example in EXAMPLES}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, id=each.stem, marks=pytest.mark.only_on(*(how(each)[0] or DATABASES)))
        for each in EXAMPLES
    ],
)
def test_an_example_ends_with_the_output_that_it_prints(
    example: Path, db_url: URL, db_alias: str
) -> None:
    server = () if db_alias == "sqlite" else ("--url", db_url.render_as_string(hide_password=False))

    printed = run(example, *server)

    assert printed == promised(example, db_alias)


def test_the_commands_of_the_first_example_run_processes(tmp_path: Path) -> None:
    batches, url = ROOT / "examples" / "01_batches.py", f"sqlite:///{tmp_path / 'batches.db'}"
    run(batches, "setup-tables", "--url", url)

    printed = run(batches, "start-processing", "--url", url, "--seconds", "3")

    sizes = re.findall(r"^consumer \d #records = (\d+) - \[(.*)\]$", printed, re.M)
    assert sizes
    assert all(int(size) == len(ids.split(", ")) for size, ids in sizes)
