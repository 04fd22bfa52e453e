"""Who keeps the oldest snapshot is told, and what a user may not see is named with its GRANT."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, text

from sa_jobqueue.doctor import Finding, Severity, examine
from tests.contract.owners.restricted_user import restricted_user
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import SERVERS, make_engine

from .models import Base, Mail, advisory, answering, examined, found, run
from .pooler import Pooler

NOW = timedelta(0)

INNODB = ("mysql", "mariadb")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Keep a transaction open that has read something."""
    level = "REPEATABLE READ"
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT count(*) FROM doctor_mail"))
        yield connection
        connection.rollback()


def snapshots(engine: Engine, age: timedelta = NOW) -> list[Finding]:
    return list(examine(engine, Mail, checks=["snapshot"], old_snapshot=age).findings)


def number_of(connection: Connection) -> int:
    ask = "pg_backend_pid()" if connection.dialect.name == "postgresql" else "connection_id()"
    return int(connection.execute(text(f"SELECT {ask}")).scalar_one())


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}])
def test_the_session_that_keeps_the_oldest_snapshot_is_named(
    engine: Engine, options: dict[str, Any]
) -> None:
    ours = engine.execution_options(**options)
    with reading(engine) as connection:
        (finding,) = snapshots(ours)
        young = examine(ours, Mail, checks=["snapshot"], old_snapshot=timedelta(days=1))
        number = number_of(connection)

    told = re.match(
        r"the snapshot of (?:session|connection) (\d+) of \w+.* is .*s old", finding.message
    )
    assert told, finding.message
    assert finding.severity is Severity.WARNING
    assert f"({told[1]})" in finding.fix or f"KILL {told[1]}" in finding.fix
    assert engine.dialect.name != "postgresql" or int(told[1]) == number
    assert "snapshot" in [fact.check for fact in young.facts]


@pytest.mark.by_turns(*INNODB)
@pytest.mark.parametrize(
    ("question", "answer", "message", "fix"),
    [
        pytest.param(
            "SELECT t.trx_mysql_thread_id",
            "SELECT 0, NULL, NULL, NULL, NULL, 90",
            "the snapshot of a prepared XA transaction is 1m 30s old",
            "XA RECOVER",
            marks=pytest.mark.only_on(*INNODB),
        ),
        pytest.param(
            "(SELECT 'session '",
            "SELECT 'the replication slot old', NULL, 'SELECT pg_drop_replication_slot'",
            "the replication slot old is 10,000 transactions or more old",
            "SELECT pg_drop_replication_slot",
            marks=pytest.mark.only_on("postgresql"),
        ),
    ],
    ids=["xa", "slot"],
)
def test_what_keeps_dead_rows_without_a_session_is_a_finding(
    engine: Engine, question: str, answer: str, message: str, fix: str
) -> None:
    with answering(engine, question, answer):
        (finding,) = snapshots(engine, timedelta(minutes=1))

    assert message in finding.message
    assert fix in finding.fix


# -- privileges ---------------------------------------------------------


@pytest.mark.only_on(*SERVERS)
def test_what_a_restricted_user_does_not_see_is_named_with_its_grant(
    engine: Engine, db_alias: str
) -> None:
    privilege = "pg_read_all_stats" if db_alias == "postgresql" else "PROCESS"
    with restricted_user(engine) as theirs:
        user = str(theirs.url.username)
        (owners,), (snapshot,) = found(theirs, Mail, "owners"), found(theirs, Mail, "snapshot")

    assert "does not see other users'" in owners.message
    assert (owners.is_unchecked, snapshot.is_unchecked) == (False, True)
    for finding in (owners, snapshot):
        assert finding.fix.startswith(f"GRANT {privilege}")
        assert user in finding.fix


@pytest.mark.only_on("postgresql")
def test_what_the_database_refuses_is_in_the_report(engine: Engine) -> None:
    with restricted_user(engine) as theirs:
        run(engine, f"REVOKE ALL ON doctor_mail FROM {theirs.url.username}")

        report = examined(theirs, Mail)

    (finding,) = (each for each in report.findings if each.check == "table")
    assert "could not be checked, because the database says: permission denied" in finding.message
    assert finding.fix.startswith("grant this user")


# -- poolers ------------------------------------------------------------


@pytest.fixture
def through_pgbouncer(db_url: URL) -> Iterator[Engine]:
    """An engine whose transactions run on whatever server connection is free."""
    try:
        with transaction_pooler(db_url) as url:
            engine = make_engine(url)
            yield engine
            engine.dispose()
    except NotHere as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.mark.only_on("postgresql")
def test_a_transaction_pooler_is_found(engine: Engine, through_pgbouncer: Engine) -> None:
    Base.metadata.create_all(engine)
    (finding,) = found(through_pgbouncer, Mail, "pooler")
    (by_advisory_locks,) = found(through_pgbouncer, advisory(), "pooler")

    severities = (finding.severity, by_advisory_locks.severity)
    assert severities == (Severity.WARNING, Severity.ERROR)
    assert "a pooler such as PgBouncer" in finding.message
    assert "direct URL" in finding.fix


@pytest.mark.only_on(*INNODB)
def test_a_pooler_that_greets_by_a_number_of_its_own_is_found(engine: Engine) -> None:
    with Pooler(engine.url) as pooler:
        (finding,) = found(make_engine(pooler.url, poolclass=NullPool), Mail, "pooler")

    assert finding.severity is Severity.WARNING
    assert "a pooler such as ProxySQL or MaxScale" in finding.message
    assert found(engine, Mail, "pooler") == []
