"""Adapters by name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.adapters.catalogue import BASELINE, CATALOGUE, ENGINES, entries


@pytest.mark.parametrize("engine", ENGINES)
def test_the_baseline_comes_first_whatever_is_named(engine: str) -> None:
    named = entries(engine, ("rows",))

    assert [entry.name for entry in named] == [BASELINE, "rows"]


def test_peers_can_be_left_out() -> None:
    assert {entry.kind for entry in entries("postgresql", peers=False)} == {"sql", "ours"}


def test_an_adapter_that_there_is_not_is_an_error_that_names_those_there_are() -> None:
    given = ["--engine", "sqlite", "--adapter", "rows", "--adapter", "nonsense"]

    result = CliRunner().invoke(main, given, terminal_width=10_000)

    assert result.exit_code == 2
    assert "no adapter nonsense; there are" in result.output
    assert all(name in result.output for name in CATALOGUE)


@pytest.mark.parametrize(("batch", "said"), [("1,x", "is no list of numbers"), ("0", "at least")])
def test_a_batch_size_that_cannot_be_is_an_error(batch: str, said: str) -> None:
    result = CliRunner().invoke(main, ["--engine", "sqlite", "--batch", batch])

    assert result.exit_code == 2
    assert said in result.output
