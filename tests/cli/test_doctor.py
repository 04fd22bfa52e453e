"""``doctor``: its output and its exit codes."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from .conftest import Run
from .shop import Base, Message

#: MariaDB shows a copy of its locks, which stays old while other connections ask for it.
pytestmark = pytest.mark.xdist_group("plans")

MESSAGES = "tests.cli.shop:Message"


@pytest.fixture
def tables(engine: Engine) -> None:
    """The shop's tables, and one unclaimed message."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Message(recipient="a"))


@pytest.mark.usefixtures("tables")
def test_a_queue_that_is_well_ends_with_0(run: Run, url: str) -> None:
    result = run("doctor", MESSAGES, "--url", url)

    assert result.exit_code == 0, result.output
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("<JobQueue Message, strategy='auto'> on SQLite 3.")
    assert "ix_message_claim" in result.stdout
    assert "one batch of 100 got 1 job;" in result.stdout
    assert last == "all is well"


@pytest.mark.usefixtures("tables")
def test_errors_end_with_1_and_name_the_fix(run: Run, url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_message_claim")

    result = run("doctor", MESSAGES, "--url", url)

    assert result.exit_code == 1
    assert "error   index     no index serves the claim" in result.stdout
    assert "fix: CREATE INDEX ix_message_claim ON message (status, run_at, id)" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 errors, 0 warnings"


@pytest.mark.usefixtures("tables")
def test_warnings_alone_end_with_3(run: Run, url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_message_claim")
        connection.exec_driver_sql("CREATE INDEX ix_all ON message (status, run_at, id)")

    result = run("doctor", MESSAGES, "--url", url)

    assert result.exit_code == 3, result.output
    assert "also the finished jobs" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 errors, 1 warning"


@pytest.mark.usefixtures("tables")
def test_without_run_the_doctor_claims_nothing(run: Run, url: str, engine: Engine) -> None:
    result = run("doctor", MESSAGES, "--url", url, "--no-run", "--limit", 5)

    assert result.exit_code == 0, result.output
    assert "one batch" not in result.stdout
    with Session(engine) as session:
        assert session.scalars(select(Message.status)).all() == ["unclaimed"]


def test_a_missing_table_is_an_error(run: Run, url: str, engine: Engine) -> None:
    engine.connect().close()  # makes the file

    result = run("doctor", MESSAGES, "--url", url)

    assert result.exit_code == 1
    assert "there is no table message" in result.stdout


@pytest.mark.usefixtures("tables")
def test_several_queues_are_examined_and_the_worst_is_the_exit_code(
    run: Run, url: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_order_claim")

    result = run("doctor", "tests.cli.shop:Order", MESSAGES, "--url", url)

    assert result.exit_code == 1
    assert "all is well" in result.stdout
    assert "error   index     no index serves the claim" in result.stdout
