"""Adapters by name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.adapters.catalogue import ALL, BASELINE, CATALOGUE, entries


@pytest.mark.parametrize("database", ALL)
def test_the_baseline_comes_first_whatever_is_named(database: str) -> None:
    named = entries(database, ("rows",))

    assert [entry.name for entry in named] == [BASELINE, "rows"]


def test_peers_can_be_left_out() -> None:
    assert {entry.kind for entry in entries("postgresql", peers=False)} == {"sql", "ours"}


def test_an_unknown_adapter_is_an_error_that_names_the_known_ones() -> None:
    given = ["drain", "--database", "sqlite", "--adapter", "rows", "--adapter", "nonsense"]

    result = CliRunner().invoke(main, given, terminal_width=10_000)

    assert result.exit_code == 2
    assert "no adapter nonsense; there are" in result.output
    assert all(name in result.output for name in CATALOGUE)


@pytest.mark.parametrize(
    ("batch", "message"), [("1,x", "is no list of numbers"), ("0", "at least")]
)
def test_an_impossible_batch_size_is_an_error(batch: str, message: str) -> None:
    result = CliRunner().invoke(main, ["drain", "--database", "sqlite", "--batch", batch])

    assert result.exit_code == 2
    assert message in result.output
