"""The proof that locks hold, by two connections; and what it says where they do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import URL, Engine, NullPool, create_engine, event, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli import cli
from sa_jobqueue.dialects import database_of_engine
from sa_jobqueue.doctor import Report, Severity, examine_locks
from tests.cutting_proxy import FOR_UPDATE, SKIP_LOCKED, CuttingProxy
from tests.support import SERVERS, make_engine, variables_hidden

from .models import Base, Mail, Subscription, advisory

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

    severity, message = verdict(examine_locks(engine, Mail))

    assert severity is Severity.WARNING
    assert "attempt to write a readonly database" in message
    engine.dispose()


@pytest.fixture
def cut(request: pytest.FixtureRequest, db_url: URL) -> Iterator[URL]:
    """The URL of a proxy that cuts a locking clause out."""
    with CuttingProxy(db_url, request.param) as proxy:
        yield proxy.url


def verdict(report: Report) -> tuple[Severity, str]:
    """Return what the check of locks says, without what it says about the product."""
    found = [one for one in (*report.findings, *report.facts) if one.check == "locks"]
    return found[0].severity, found[0].message


def run_locks(url: URL, alias: str, target: str = "tests.doctor.models:Mail") -> Result:
    """Run the command."""
    plain = url.update_query_dict(PLAIN.get(alias, {}))
    shown = plain.render_as_string(hide_password=False)
    return CliRunner().invoke(cli, ["doctor", "--locks", target, "--url", shown])


@pytest.mark.usefixtures("mails")
def test_the_locks_of_a_real_database_are_proved_and_nothing_is_changed(
    engine: Engine,
) -> None:
    with Session(engine) as session:
        before = session.execute(select(Mail.__table__)).all()

    report = examine_locks(engine, Mail)

    severity, message = verdict(report)
    assert severity is Severity.OK
    assert re.match(r"(row locks hold: the first connection locked row \d|the write lock)", message)
    assert not report.findings
    with Session(engine) as session:
        assert session.execute(select(Mail.__table__)).all() == before
    with engine.begin() as connection:  # nothing is locked any more
        connection.execute(select(Mail).with_for_update(nowait=True))


@pytest.mark.usefixtures("mails")
def test_the_command_ends_with_0_where_locks_hold(db_url: URL, db_alias: str) -> None:
    result = run_locks(db_url, db_alias)

    assert result.exit_code == 0, result.output
    assert "locks     " in result.output
    assert "all is well" in result.output


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize("cut", [FOR_UPDATE], indirect=True)
def test_the_command_ends_with_1_where_nothing_is_locked(cut: URL, db_alias: str) -> None:
    result = run_locks(cut, db_alias)

    assert result.exit_code == 1, result.output
    assert "row locks do not hold: two connections locked row" in result.output


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize("cut", [SKIP_LOCKED], indirect=True)
def test_a_server_that_waits_in_spite_of_skip_locked_is_an_error(cut: URL, db_alias: str) -> None:
    report = examine_locks(make_engine(cut, poolclass=NullPool), Mail)

    severity, message = verdict(report)
    assert severity is Severity.ERROR
    assert "SKIP LOCKED is not obeyed" in message


@pytest.mark.only_on(*SERVERS)
def test_an_empty_table_proves_nothing_and_the_report_says_how_to_go_on(
    db_url: URL, db_alias: str, engine: Engine
) -> None:
    result = run_locks(db_url, db_alias)

    assert result.exit_code == 3, result.output
    assert "doctor_mail has no row that could be locked" in result.output
    assert "fix: enqueue a job" in result.output


def test_an_autocommit_engine_is_not_examined(engine: Engine, mails: None) -> None:
    report = examine_locks(engine.execution_options(isolation_level="AUTOCOMMIT"), Mail)

    assert verdict(report)[0] is Severity.WARNING
    assert "AUTOCOMMIT" in verdict(report)[1]


@pytest.mark.only_on(*SERVERS)
def test_a_missing_table_ends_the_proof(db_url: URL, engine: Engine) -> None:
    Base.metadata.drop_all(engine)

    report = examine_locks(engine, Mail)

    assert [error.check for error in report.errors] == ["table"]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.usefixtures("mails")
def test_a_storage_engine_without_row_locks_is_an_error(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE doctor_mail ENGINE = MyISAM")

    severity, message = verdict(examine_locks(engine, Mail))

    assert severity is Severity.ERROR
    assert "two connections locked row" in message


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("mails")
def test_without_skip_locked_the_second_connection_waits_in_vain(engine: Engine) -> None:
    database_of_engine(engine).skip_locked = False  # as before MySQL 8.0.1

    severity, message = verdict(examine_locks(engine, Mail))

    assert severity is Severity.OK
    assert "and the second was refused it" in message


@pytest.mark.only_on("mysql", "mariadb")
def test_a_server_that_knows_no_owners_is_a_warning_that_names_the_lease(engine: Engine) -> None:
    """It lacks the table of its variables, as OceanBase's seekdb does."""
    with variables_hidden(engine):
        report = examine_locks(engine, Mail)

    (found,) = (each for each in report.warnings if each.check == "owners")

    assert "does not tell which owners are alive" in found.message
    assert "workers claim under plain names here" in found.fix


@pytest.mark.usefixtures("mails")
def test_an_owner_is_tried_too(engine: Engine) -> None:
    report = examine_locks(engine, Mail)

    assert [fact.message for fact in report.facts if fact.check == "owners"] == [
        "an Owner is seen to be alive, so that a worker's death is noticed at once"
    ]


@pytest.mark.only_on("sqlite")
def test_two_writers_of_one_file_are_an_error(tmp_path: Path) -> None:
    """As on a file system that ignores locks; here BEGIN IMMEDIATE locks nothing."""
    engine = create_engine(f"sqlite:///{tmp_path / 'jobs.db'}", poolclass=NullPool)
    Base.metadata.create_all(engine)

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def begin(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return statement.replace("BEGIN IMMEDIATE", "SELECT 1"), parameters

    assert "the write lock does not hold" in verdict(examine_locks(engine, Mail))[1]


@pytest.mark.only_on("sqlite")
def test_a_database_in_memory_has_one_connection() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)

    severity, message = verdict(examine_locks(engine, Mail))

    assert severity is Severity.OK
    assert "in memory" in message


@pytest.mark.only_on("postgresql")
def test_the_locks_of_an_advisory_queue_are_proved(engine: Engine) -> None:
    queue = advisory()
    assert "no job that could be claimed" in verdict(examine_locks(engine, queue))[1]
    with engine.begin() as connection:
        connection.execute(insert(Subscription), [{}, {}])

    severity, message = verdict(examine_locks(engine, queue))

    assert severity is Severity.OK
    assert "advisory locks hold: the first connection claimed row" in message


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("mails")
def test_the_report_says_what_the_server_says_it_is(engine: Engine) -> None:
    report = examine_locks(engine, Mail)

    assert any("the server says that it is" in fact.message for fact in report.facts)
