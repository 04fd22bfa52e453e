"""Adapters by name."""

from __future__ import annotations

from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.adapters.catalogue import CATALOGUE


def test_an_unknown_adapter_is_an_error_that_names_the_known_ones() -> None:
    given = ["drain", "--database", "sqlite", "--adapter", "rows", "--adapter", "nonsense"]

    result = CliRunner().invoke(main, given, terminal_width=10_000)

    assert result.exit_code == 2
    assert "no adapter nonsense; there are" in result.output
    assert all(name in result.output for name in CATALOGUE)
