"""The figures, tables and plots of a run, and the pages that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import drain, growth, load
from benchmarks.__main__ import main
from benchmarks.adapters.catalogue import ALL, CATALOGUE
from benchmarks.harness.command import RESULTS
from benchmarks.harness.databases import Database

from .fakes import Folder, Retrying, fake

INTERNALS = ("docs/internals/performance.md", "docs/internals/bulk.md")
PAGES = [
    RESULTS.parents[1] / page for page in (*INTERNALS, "docs/performance.md", "CONTRIBUTING.md")
]

TITLES = {"postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite"}


@pytest.mark.usefixtures("forked_hosts")
def test_each_adapter_is_compared_with_the_baseline_of_the_same_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database("folder", str(tmp_path))
    plan = {"batch": 5, "workers": 2, "rounds": 2}

    baseline, other = drain.measure(
        database, [fake(Folder), fake(Retrying, "other")], seconds=0.01, **plan
    )

    assert baseline["ratios"] == [1.0, 1.0]
    assert other["ratio"] > 0
    assert other["retries"] == 2 * plan["workers"] * plan["rounds"]
    told = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["sql", "other", "other", "sql"]


@pytest.mark.parametrize("name", ALL)
def test_the_files_of_earlier_runs_are_readable(name: str) -> None:
    for module in (drain, growth, load):
        read = json.loads((RESULTS / f"{module.main.name}-{name}.json").read_text())

        assert read["conditions"]["database"] == name
        assert module.tables(read)


@pytest.mark.parametrize("name", [*(f"drain-{name}" for name in ALL), "sqlite-normal"])
def test_the_ratios_of_the_page_are_those_of_the_results(name: str) -> None:
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    page = [_name_and_ratios(line) for line in PAGES[0].read_text().splitlines()]

    for line in drain.tables(figures).splitlines()[2:]:
        assert _name_and_ratios(line) in page


@pytest.mark.parametrize("name", ALL)
def test_the_workers_of_the_page_are_those_of_the_results(name: str) -> None:
    figures = json.loads((RESULTS / f"workers-{name}.json").read_text())
    page = PAGES[0].read_text()

    workers = drain.table_of_workers(figures).splitlines()[2:]

    assert len(workers) == len(drain.LOOPS)
    for line in workers:
        assert f"| {TITLES[name]}, {line[2:]}" in page


def _name_and_ratios(line: str) -> tuple[str, list[str]]:
    return line[2:].partition(" |")[0], re.findall(r" = (\d+\.\d\d)", line)


def test_the_commands_of_the_pages_are_the_benchmarks() -> None:
    text = "\n".join(page.read_text() for page in PAGES)

    commands = re.findall(r"python -m benchmarks ([^#`\n]*)", text)

    assert {command.split()[0] for command in commands} >= set(main.commands)
    for command in commands:
        result = CliRunner().invoke(main, [*command.split(), "--help"])
        assert result.exit_code == 0, result.output


def test_an_unknown_adapter_is_an_error_that_names_the_known_ones() -> None:
    given = ["drain", "--database", "sqlite", "--adapter", "rows", "--adapter", "nonsense"]

    result = CliRunner().invoke(main, given, terminal_width=10_000)

    assert result.exit_code == 2
    assert "no adapter nonsense; there are" in result.output
    assert all(name in result.output for name in CATALOGUE)
