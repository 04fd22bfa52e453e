"""docs/internals/evidence.md has evidence for each promise of the README."""

from __future__ import annotations

import itertools

import pytest

from .markdown import ROOT, page, table

EVIDENCE = page("docs/internals/evidence.md")

PROMISES = table(EVIDENCE, "promise")
RESULTS = {row["command"]: row["last result"] for row in table(EVIDENCE, "command")}

KINDS = {"histories", "mutants", "interleavings", "model", "chaos", "clusters", "tests"}


def test_the_promises_are_those_of_the_readme() -> None:
    promises = [row["promise"] for row in table(page("README.md"), "promise")]

    assert sorted(row["promise"] for row in PROMISES) == sorted(promises)


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row["promise"])
def test_each_promise_names_its_kinds_of_evidence(row: dict[str, str]) -> None:
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
