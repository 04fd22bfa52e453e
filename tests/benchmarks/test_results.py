"""What is written of a run: figures, a table, a plot."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.drain import Drain
from benchmarks.harness.plots import plot_drains, plot_growth
from benchmarks.harness.report import as_markdown, write
from benchmarks.harness.rounds import Plan, Result, measure

from .fakes import Folder, Retrying, fake
from .growths import growth


def result(adapter: str, batch: int, *rates: int) -> Result:
    """Make the result of an adapter from its rates; the baseline ran 100 jobs a second."""
    drains = tuple(Drain(adapter, batch, 2, 1_000, 1_000 / rate, 1.0, 0) for rate in rates)
    return Result(adapter, batch, drains, tuple(rate / 100 for rate in rates))


RESULTS = [result("sql", 1, 100, 100), result("rows", 1, 80, 90), result("sql", 10, 100, 100)]
PLAN = Plan("sqlite", "sqlite://", workers=2, batches=(1, 10), rounds=2, seconds=0.1)


def test_each_adapter_is_compared_with_the_baseline_of_the_same_round(tmp_path: Path) -> None:
    plan = Plan("folder", str(tmp_path), workers=2, batches=(5,), rounds=2, seconds=0.01)
    told: list[Drain] = []

    found = list(measure(plan, [fake(Folder), fake(Retrying, "other")], told.append))

    baseline, other = found
    assert list(baseline.ratios) == [1.0, 1.0]
    assert other.ratio > 0
    assert other.retries == 2 * plan.workers * plan.rounds
    assert [drain.adapter for drain in told] == ["sql", "other", "other", "sql"]


def test_results_are_written_with_their_conditions(tmp_path: Path) -> None:
    path = write(tmp_path / "results", PLAN, RESULTS)

    written = json.loads(path.read_text())
    assert written["conditions"]["engine"] == "sqlite"
    assert [one["ratio"] for one in written["results"]] == [1.0, 0.85, 1.0]
    assert written["results"][1]["drains"][0]["jobs"] == 1_000


def test_the_table_has_a_row_for_each_adapter_and_a_column_for_each_batch_size() -> None:
    assert as_markdown(RESULTS).splitlines() == [
        "| | batch 1 | batch 10 |",
        "|---|---|---|",
        "| sql | 100 = 1.00 | 100 = 1.00 |",
        "| rows | 85 = 0.85 | - |",
    ]


@pytest.fixture
def drains(tmp_path: Path) -> Path:
    """Give the JSON file of a run."""
    pytest.importorskip("matplotlib")
    return write(tmp_path, PLAN, RESULTS)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Give the JSON file of a growth."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "growth.json"
    written = {"conditions": {"engine": "sqlite", "server": "3"}, **growth().as_dict()}
    path.write_text(json.dumps(written))
    return path


def test_drains_are_plotted_beside_their_figures(drains: Path) -> None:
    plot = plot_drains(drains)

    assert plot == drains.with_suffix(".svg")
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_growth_is_plotted_beside_its_figures(grown: Path) -> None:
    plot = plot_growth(grown)

    assert plot == grown.with_suffix(".svg")
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_the_same_figures_make_the_same_plot(drains: Path) -> None:
    once = plot_drains(drains).read_bytes()

    assert plot_drains(drains).read_bytes() == once
