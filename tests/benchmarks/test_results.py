"""The figures, tables and plots of a run, and the pages that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import drain, growth, load
from benchmarks.__main__ import main
from benchmarks.adapters.catalogue import ALL
from benchmarks.growth.plot import draw as draw_growth
from benchmarks.harness.command import RESULTS
from benchmarks.harness.databases import Database
from benchmarks.harness.plots import Draw, draw_beside
from benchmarks.harness.report import write

from .fakes import Folder, Retrying, fake
from .growths import growth as grown

PAGES = [RESULTS.parents[1] / page for page in ("docs/performance.md", "docs/bulk.md")]
PAGES.append(RESULTS.parents[1] / "CONTRIBUTING.md")

TITLES = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}

DRAINS = {
    "results": [
        {"adapter": adapter, "batch": batch, "rate": 100 * ratio, "ratio": ratio, "retries": 0}
        for adapter, batch, ratio in (("sql", 1, 1.0), ("rows", 1, 0.85), ("sql", 10, 1.0))
    ]
}


def written(folder: Path) -> dict[str, Path]:
    """Write a file of drains and a file of growth."""
    database = Database("sqlite", "sqlite://")
    return {
        "drain": write(folder, "drain", database, {"workers": 2}, DRAINS),
        "growth": write(folder, "growth", database, {}, grown()),
    }


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


def test_a_drain_lasts_about_as_long_as_wanted_though_its_start_takes_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[int] = []

    def drain_in(*_: object, jobs: int, **__: object) -> dict[str, object]:
        started.append(jobs)
        row = {"adapter": "sql", "batch": 10, "workers": 4, "fill_seconds": 1, "retries": 0}
        return {**row, "jobs": jobs, "seconds": 0.1 + jobs / 10_000}

    monkeypatch.setattr(drain, "drain", drain_in)
    database = Database("folder", str(tmp_path))

    (row,) = drain.measure(database, [fake(Folder)], batch=10, workers=4, rounds=1, seconds=2)

    assert 1.5 < row["drains"][0]["seconds"] < 2.1
    assert len(started) > 2  # a pilot of 400 jobs is mostly its start
    assert row["drains"][0]["jobs"] % 10 == 0


def test_results_are_written_with_their_conditions(tmp_path: Path) -> None:
    read = json.loads(written(tmp_path / "results")["drain"].read_text())

    assert read["conditions"]["database"] == "sqlite"
    assert read["conditions"]["workers"] == 2
    assert read["conditions"]["durability"]
    assert read["results"] == DRAINS["results"]


def test_the_table_has_a_row_for_each_adapter_and_a_column_for_each_batch_size() -> None:
    assert drain.tables(DRAINS).splitlines() == [
        "|  | batch 1 | batch 10 |",
        "| --- | --- | --- |",
        "| sql | 100 = 1.00 | 100 = 1.00 |",
        "| rows | 85 = 0.85 | - |",
    ]


def test_a_worker_is_compared_with_its_loop_in_the_same_round() -> None:
    figures = {
        "results": [
            {
                "adapter": adapter,
                "batch": 1,
                "rate": rates[1],
                "retries": 0,
                "drains": [{"jobs": rate, "seconds": 1} for rate in rates],
            }
            for adapter, rates in {"entities, turn": (100, 50, 80), "Worker": (90, 60, 40)}.items()
        ]
    }

    assert drain.table_of_workers(figures).splitlines()[2:] == ["| Worker | 60 = 0.90 |"]


@pytest.mark.parametrize("draw", [drain.draw, draw_growth], ids=["drain", "growth"])
def test_the_same_figures_make_the_same_plot_beside_them(
    draw: Draw, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("matplotlib")
    path = written(tmp_path)[request.node.callspec.id]

    plot = draw_beside(path, draw)

    once = plot.read_bytes()
    assert plot == path.with_suffix(".svg")
    assert ElementTree.fromstring(once).tag.endswith("svg")
    assert draw_beside(path, draw).read_bytes() == once


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
