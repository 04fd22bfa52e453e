"""``doctor``: its output and its exit codes; ``sql`` prints claims without a database."""

from __future__ import annotations

import pytest

from .conftest import Run, Shell

MESSAGES = "tests.cli.shop:Message"


#: Drop the index, or make one that has the finished jobs, too.
DROP = "DROP INDEX ix_message_claim"
OTHER = "CREATE INDEX ix_all ON message (status, run_at, id)"


@pytest.mark.parametrize(
    ("statements", "code", "last", "said"),
    [
        ((), 0, "all is well", "<JobQueue Message, strategy='auto'> on SQLite 3."),
        ((DROP,), 1, "1 error, 0 warnings", "error   index     no index serves the claim"),
        ((DROP,), 1, "1 error, 0 warnings", "fix: CREATE INDEX ix_message_claim ON message (stat"),
        ((DROP, OTHER), 3, "0 errors, 1 warning", "warning index     ix_all (status, run_at, id)"),
        (("DROP TABLE message",), 1, "1 error, 0 warnings", "there is no table message"),
    ],
)
def test_the_exit_code_tells_errors_from_warnings_and_each_finding_is_printed(
    shell: Shell, statements: tuple[str, ...], code: int, last: str, said: str
) -> None:
    with shell.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)

    result = shell("doctor", MESSAGES)

    assert result.exit_code == code, result.output
    assert said in result.stdout
    assert result.stdout.splitlines()[-1] == last


def test_several_queues_are_examined_and_the_worst_is_the_exit_code(shell: Shell) -> None:
    with shell.engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_order_claim")

    result = shell("doctor", "tests.cli.shop:Order", MESSAGES)

    assert result.exit_code == 1
    assert "all is well" in result.stdout
    assert "error   index     no index serves the claim" in result.stdout


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


def test_sqlite_needs_one_statement_for_a_claim(run: Run) -> None:
    assert run("sql", "tests.cli.shop:to_a", "--dialect", "sqlite").output.count(";") == 1
