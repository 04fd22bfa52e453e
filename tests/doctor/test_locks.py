"""The proof that locks hold, by two connections; and what it says where they do not."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import URL, Engine, create_engine, event, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli import cli
from sa_jobqueue.doctor import Report, Severity, examine
from tests.cutting_proxy import FOR_UPDATE, SKIP_LOCKED, CuttingProxy
from tests.support import SERVERS, variables_hidden

from .models import Base, Mail, advisory, run

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR

#: How the command line connects without TLS.
PLAIN = {"postgresql": {"sslmode": "disable"}, "mysql": {"ssl_disabled": "true"}}
PLAIN["mariadb"] = PLAIN["mysql"]


@pytest.fixture
def mails(engine: Engine) -> None:
    """Two committed mails."""
    with engine.begin() as connection:
        connection.execute(insert(Mail), [{"priority": 1}, {"priority": 2}])


@pytest.mark.only_on("sqlite")
@pytest.mark.usefixtures("mails")
def test_a_connection_that_may_only_read_proves_no_lock(db_url: URL) -> None:
    engine = create_engine(f"sqlite:///file:{db_url.database}?mode=ro&uri=true")

    (finding,) = proved(engine)

    assert finding.is_unchecked
    assert "attempt to write a readonly database" in finding.message
    engine.dispose()


def proved(engine: Engine, queue: Any = Mail) -> list[Any]:
    """Return what the proof says: of row locks, of named locks, and of the product."""
    report = examine(engine, queue, checks=["locks"])
    return [each for each in said(report) if each.check == "locks"]


def said(report: Report) -> list[Any]:
    return [*report.findings, *report.facts]


def run_locks(url: URL, alias: str, target: str = "tests.doctor.models:Mail") -> Result:
    """Run the command."""
    plain = url.update_query_dict(PLAIN.get(alias, {}))
    shown = plain.render_as_string(hide_password=False)
    return CliRunner().invoke(cli, ["doctor", "--locks", target, "--url", shown])


@pytest.mark.usefixtures("mails")
def test_the_locks_of_a_real_database_are_proved_and_nothing_is_changed(
    engine: Engine, db_url: URL, db_alias: str
) -> None:
    with Session(engine) as session:
        before = session.execute(select(Mail.__table__)).all()

    result = run_locks(db_url, db_alias)

    assert result.exit_code == 0, result.output
    assert re.search(
        r"locks     (row locks hold: the first .* row \d|the write lock)", result.output
    )
    assert "named locks hold, and others see that an Owner is alive" in result.output
    assert ("the server says that it is" in result.output) is (db_alias != "sqlite")
    assert "all is well" in result.output
    with Session(engine) as session:
        assert session.execute(select(Mail.__table__)).all() == before
    with engine.begin() as connection:  # nothing is locked any more
        connection.execute(select(Mail).with_for_update(nowait=True))


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize(
    ("clause", "message"),
    [
        (FOR_UPDATE, "row locks do not hold: two connections locked row"),
        (SKIP_LOCKED, "SKIP LOCKED is not obeyed"),
    ],
)
def test_the_command_ends_with_1_where_a_clause_has_no_effect(
    db_url: URL, db_alias: str, clause: Any, message: str
) -> None:
    with CuttingProxy(db_url, clause) as proxy:
        result = run_locks(proxy.url, db_alias)

    assert result.exit_code == 1, result.output
    assert message in result.output


@pytest.mark.only_on(*SERVERS)
def test_an_empty_table_proves_nothing_and_the_report_says_how_to_go_on(
    db_url: URL, db_alias: str, engine: Engine
) -> None:
    result = run_locks(db_url, db_alias)

    assert result.exit_code == 3, result.output
    assert "doctor_mail has no row that could be locked" in result.output
    assert "fix: enqueue a job" in result.output


@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
def test_an_autocommit_engine_is_not_examined(engine: Engine) -> None:
    rows = proved(engine.execution_options(isolation_level="AUTOCOMMIT"))[0]

    assert rows.is_unchecked
    assert "AUTOCOMMIT" in rows.message


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.usefixtures("mails")
def test_a_storage_engine_without_row_locks_is_an_error(engine: Engine) -> None:
    run(engine, "ALTER TABLE doctor_mail ENGINE = MyISAM")

    rows = proved(engine)[0]

    assert rows.severity is ERROR
    assert "two connections locked row" in rows.message


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("mails")
def test_without_skip_locked_the_second_connection_waits_in_vain(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before MySQL 8.0.1."""
    monkeypatch.setattr("sa_jobqueue.databases.innodb.MySQL.at_least", lambda *_: False)

    rows = proved(engine)[0]

    assert rows.severity is OK
    assert "the second was refused it" in rows.message


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.usefixtures("mails")
def test_a_server_that_knows_no_owners_is_a_warning_that_names_the_lease(engine: Engine) -> None:
    """It lacks the table of its variables, as OceanBase's seekdb does."""
    with variables_hidden(engine):
        found = next(each for each in proved(engine) if each.severity is WARNING)

    assert "does not tell which owners are alive" in found.message
    assert "workers claim under plain names here" in found.fix


@pytest.mark.usefixtures("mails")
@pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")
def test_named_locks_that_two_connections_have_are_an_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.doctor.checks.named_lock", lambda *_: nullcontext())

    assert [each.message for each in proved(engine) if each.severity is ERROR] == [
        "named locks do not hold: two connections had one"
    ]


@pytest.mark.only_on("sqlite")
def test_two_writers_of_one_file_are_an_error(engine: Engine) -> None:
    """As on a file system that ignores locks; here BEGIN IMMEDIATE locks nothing."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def begin(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return statement.replace("BEGIN IMMEDIATE", "SELECT 1"), parameters

    assert "the write lock does not hold" in proved(engine)[0].message


def test_a_database_in_memory_has_one_connection() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)

    (only,) = proved(engine)

    assert only.severity is OK
    assert "in memory" in only.message


@pytest.mark.only_on("postgresql")
def test_of_an_advisory_queue_the_named_locks_are_proved(engine: Engine) -> None:
    Base.metadata.create_all(engine)

    first, *_ = proved(engine, advisory())

    assert (first.severity, first.message.partition(",")[0]) == (OK, "named locks hold")
