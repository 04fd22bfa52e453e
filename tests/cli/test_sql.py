"""``sql`` prints claims without a database."""

from __future__ import annotations

import pytest

from .conftest import Run

TO_A = "tests.cli.shop:to_a"

SKIPPING = {
    "postgresql": "FOR NO KEY UPDATE OF message SKIP LOCKED",
    "mysql": "FOR UPDATE OF message SKIP LOCKED",
    "mariadb": "FOR UPDATE SKIP LOCKED",
}


@pytest.mark.parametrize("dialect", SKIPPING)
def test_servers_skip_locked_rows(run: Run, dialect: str) -> None:
    result = run("sql", TO_A, "--dialect", dialect, "--strategy", "skip_locked")

    assert result.exit_code == 0, result.output
    assert SKIPPING[dialect] in result.output


def test_sqlite_needs_one_statement(run: Run) -> None:
    result = run("sql", TO_A, "--dialect", "sqlite")

    assert result.exit_code == 0, result.output
    assert result.output.count(";") == 1
    assert "-- :recipient_1 = 'a%'" in result.output
    assert "RETURNING" in result.output


def test_each_clause_begins_a_line(run: Run) -> None:
    result = run("sql", "tests.cli.shop:Order", "--dialect", "mariadb")

    lines = [line.split()[0] for line in result.output.splitlines() if line]
    assert lines == ["SELECT", "FROM", "WHERE", "ORDER", "LIMIT", "FOR", "UPDATE", "SET", "WHERE"]


def test_keys_are_shown_as_a_parameter(run: Run) -> None:
    result = run("sql", "tests.cli.shop:Message", "--dialect", "mysql")

    assert "message.id IN (:sa_jobqueue_keys)" in result.output


def test_an_impossible_strategy_is_one_line(run: Run) -> None:
    result = run("sql", TO_A, "--dialect", "sqlite", "--strategy", "skip_locked")

    assert result.exit_code == 1
    assert result.output.startswith("Error: strategy 'skip_locked' cannot run on SQLite")
    assert len(result.output.splitlines()) == 1
