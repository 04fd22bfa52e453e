"""``sql`` prints claims without a database."""

from __future__ import annotations

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    ("target", "dialect", "said"),
    [
        ("tests.cli.shop:Message", "postgresql", "FOR NO KEY UPDATE OF message SKIP LOCKED"),
        ("tests.cli.shop:Message", "mysql", "FOR UPDATE OF message SKIP LOCKED"),
        ("tests.cli.shop:Message", "mysql", "message.id IN (:sa_jobqueue_keys)"),
        ("tests.cli.shop:Message", "mariadb", "FOR UPDATE SKIP LOCKED"),
        ("tests.cli.shop:to_a", "sqlite", "-- :recipient_1 = 'a%'"),
        ("tests.cli.films:show", "sqlite", "status = 'cut'"),
        ("tests.cli.films", "sqlite", "SET status='claimed'"),
    ],
)
def test_the_claim_is_printed(run: Run, target: str, dialect: str, said: str) -> None:
    result = run("sql", target, "--dialect", dialect)

    assert result.exit_code == 0, result.output
    assert said in result.output


def test_sqlite_needs_one_statement(run: Run) -> None:
    assert run("sql", "tests.cli.shop:to_a", "--dialect", "sqlite").output.count(";") == 1
