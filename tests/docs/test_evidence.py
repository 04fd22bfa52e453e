"""docs/evidence.md has evidence for each promise of the README, by commands that exist."""

from __future__ import annotations

import itertools
import re

import pytest

from .markdown import ROOT, page, table

EVIDENCE = page("docs/evidence.md")
README = " ".join(page("README.md").split())

PROMISES = table(EVIDENCE, "promise")
RESULTS = {row["command"]: row["last result"] for row in table(EVIDENCE, "command")}

KINDS = {"histories", "mutants", "interleavings", "model", "chaos", "clusters", "tests"}


def points(heading: str) -> list[str]:
    """Return the points of a section of the README, each on one line."""
    _, _, section = page("README.md").partition(f"## {heading}\n")
    section, _, _ = section.partition("\n## ")
    return [" ".join(point.split()) for point in re.split(r"^- |^\*\*", section, flags=re.M)[1:]]


@pytest.mark.parametrize("heading", ["What is promised, and what is not", "Other ways to claim"])
def test_each_promise_of_the_readme_has_its_line(heading: str) -> None:
    quotes = [row["promise"] for row in PROMISES]

    bare = [point for point in points(heading) if not any(quote in point for quote in quotes)]

    assert points(heading)
    assert bare == []


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row["promise"])
def test_each_line_quotes_the_readme_and_names_its_kinds_of_evidence(row: dict[str, str]) -> None:
    assert row["promise"] in README
    assert set(row["evidence"].split(", ")) <= KINDS


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row["promise"])
def test_each_command_of_a_promise_has_a_last_result(row: dict[str, str]) -> None:
    commands = row["commands"].split(", ")

    assert [command for command in commands if not RESULTS.get(command)] == []


@pytest.mark.parametrize("command", RESULTS)
def test_each_command_names_what_exists(command: str) -> None:
    words = command.strip("`").split()
    named = dict(itertools.pairwise(words))
    paths = [word for word in words if "/" in word]
    if "-m" in words:
        paths.append(named["-m"].replace(".", "/"))
    if "tox" in words:
        assert f"[testenv:{named['-e']}]" in page("tox.ini")

    assert paths or "tox" in words
    assert [path for path in paths if not (ROOT / path).exists()] == []
