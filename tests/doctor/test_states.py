"""Each state of a database that slows or breaks claims is found, and its fix is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import Finding, Severity
from tests.models import Base as Models
from tests.models import Message
from tests.support import until

from .models import (
    Deed,
    Mail,
    Subscription,
    add_mails,
    advisory,
    examined,
    found,
    replace_index,
    run,
)

ERROR, WARNING = Severity.ERROR, Severity.WARNING
SERVERS, INNODB = ("postgresql", "mysql", "mariadb"), ("mysql", "mariadb")
PARTIAL = ("postgresql", "sqlite")

Make = Callable[[Engine], Any]


def statement(*words: str, **of_database: str) -> Make:
    """Make a state by a statement, of each database its own if it is named."""
    return lambda engine: run(engine, of_database.get(engine.dialect.name) or words[0])


def indexed(purpose: str, columns: str = "", where: str = "", of: Any = Mail) -> Make:
    """Make a state by replacing an index of a model."""
    return lambda engine: replace_index(engine, purpose, columns, where, of)


def nothing(engine: Engine) -> None:
    """The state is that of the models."""


def state(name: str, *values: Any, on: tuple[str, ...] = ()) -> Any:
    return pytest.param(*values, id=name, marks=[pytest.mark.only_on(*on)] if on else [])


DEEDS = JobQueue(Deed, serial_by=Deed.client)
SENDING = JobQueue(Mail, during="sending")
BY_RECIPIENT = JobQueue(Mail, order_by=Mail.recipient.desc())
AT_ONCE = JobQueue(Mail, strategy="update_then_select")
REAPS = "reap(), which wants (status, owner_date)"
UNUSABLE = statement(
    postgresql="UPDATE pg_index SET indisvalid = false "
    "WHERE indexrelid = CAST('ix_doctor_mail_claim' AS regclass)",
    mysql="ALTER TABLE doctor_mail ALTER INDEX ix_doctor_mail_claim INVISIBLE",
    mariadb="ALTER TABLE doctor_mail ALTER INDEX ix_doctor_mail_claim IGNORED",
)
IMPRECISE = statement(
    postgresql="ALTER TABLE doctor_mail ALTER owner_date TYPE timestamp(3) with time zone",
    mysql="ALTER TABLE doctor_mail MODIFY owner_date DATETIME(3)",
    mariadb="ALTER TABLE doctor_mail MODIFY owner_date DATETIME",
)
MADE = "CREATE INDEX ix_doctor_mail"

#: What is done to the tables, the queue, the check, and what it says: severity, message, fix.
STATES = [
    state("no table", Models.metadata.drop_all, Message, "table",
          ERROR, "there is no table message", "run the migrations"),
    state("no column", statement("ALTER TABLE doctor_mail DROP COLUMN touched"), Mail, "table",
          ERROR, "lacks columns of the model: touched", "alembic upgrade head"),
    state("no advisory locks", nothing, advisory(), "strategy",
          ERROR, "no advisory locks", "strategy='auto'", on=("mysql", "mariadb", "sqlite")),
    state("microseconds are lost", IMPRECISE, Mail, "columns",
          ERROR, "owner_date keeps", "type_=timestamp_type()", on=SERVERS),
    state("no zone", statement("ALTER TABLE doctor_mail ALTER owner_date TYPE timestamp"), Mail,
          "columns", ERROR, "owner_date has no time zone in the database",
          "postgresql_using=\"owner_date AT TIME ZONE 'UTC'\"", on=("postgresql",)),
    state("own words", lambda engine: add_mails(engine, 3, status="open"), Mail, "statuses",
          WARNING, "statuses of their own ('open'): no claim takes them, since it looks for "
          "'unclaimed'", "__queue_args__ = {'names': {'unclaimed': 'open'}}"),
    # the index of the claim
    state("no claim index", indexed("claim"), Mail, "index", ERROR,
          "no index serves the claim, which wants (status, priority, id)",
          f"{MADE}_claim ON doctor_mail (status, priority, id)", on=("sqlite", "postgresql", "mysql")),
    state("no claim index that is named", indexed("claim"), Mail, "index", ERROR,
          "the claim names the index ix_doctor_mail_claim, which is missing",
          f"{MADE}_claim ON doctor_mail (status, priority, id)", on=("mariadb",)),
    state("a claim index that is short", indexed("claim", "status, id"), Mail, "index", ERROR,
          "ix_doctor_mail_claim (status, id) does not fit the claim, which wants (status, priority",
          f"drop ix_doctor_mail_claim, then {MADE}_claim ON doctor_mail (status, priority, id)"),
    state("another predicate", indexed("claim", "status, priority, id", "status = 'new'"), Mail,
          "index", ERROR, "does not fit the claim, which wants (status, priority, id) WHERE status "
          "= 'unclaimed'", "create_claim_index(op, Mail, replace=True)", on=PARTIAL),
    state("a wider predicate", indexed("claim", "status, priority, id",
          "status IN ('unclaimed', 'waiting')"), Mail, "index", WARNING,
          "Alembic does not see that the predicate has changed", "replace=True", on=("postgresql",)),
    state("no predicate", indexed("claim", "status, priority, id"), Mail, "index", WARNING,
          "it holds finished jobs too", "WHERE", on=PARTIAL),
    state("an unusable index", UNUSABLE, Mail, "index", ERROR,
          "serves no statement: it is", "drop ix_doctor_mail_claim, then", on=SERVERS),
    state("an order of its own", nothing, BY_RECIPIENT, "index", ERROR,
          "no index serves the claim, which wants (status, recipient DESC, id)",
          "create_claim_index(op, queue)); declare it in __table_args__ too"),
    state("a class with equality", nothing, Message, "index", ERROR,
          "the claim index of Message begins with channel",
          "as in JobQueue(Message, Message.channel == ..)"),
    # indexes of plain classes
    state("no index of a plain class", statement("DROP INDEX ix_due"), advisory(), "index", ERROR,
          "no index serves the claim, which wants (kind, mailed, id)",
          "ON doctor_subscription (kind, mailed, id)", on=("postgresql",)),
    state("an order beside a range", nothing, advisory(order_by=Subscription.id.desc()), "index",
          ERROR, "can serve both the range of doctor_subscription.mailed and the order by",
          "do as the message says", on=("postgresql",)),
    # other indexes
    state("no reap index", indexed("reap"), Mail, "reap", WARNING, f"no index serves {REAPS}",
          "create_reap_index(op, Mail)"),
    state("another reap index", indexed("reap", "status, owner"), Mail, "reap", WARNING,
          f"ix_doctor_mail_reap (status, owner) does not fit {REAPS}",
          f"drop ix_doctor_mail_reap, then {MADE}_reap ON doctor_mail (status, owner_date)"),
    state("another reap predicate", indexed("reap", "status, owner_date", "status = 'taken'"), Mail,
          "reap", WARNING, f"does not fit {REAPS} WHERE status = 'claimed'", "", on=PARTIAL),
    state("no reap index of its own", nothing, SENDING, "reap", WARNING,
          f"does not fit {REAPS} WHERE status = 'sending'",
          f"{MADE}_reap_sending ON doctor_mail", on=PARTIAL),
    state("no key index", indexed("key_client", of=Deed), DEEDS, "index", WARNING,
          "no index serves the search for the next job of each", "create_key_index(op, Deed)"),
    state("another key index", indexed("key_client", "status", of=Deed), DEEDS, "index", WARNING,
          "(status) does not fit the search for the next job of each",
          "drop ix_doctor_deed_key_client, then CREATE INDEX ix_doctor_deed_key_client ON"),
    state("another failed index", indexed("failed", "status", of=Deed), Deed, "failed", WARNING,
          "(status) does not fit the search for failed jobs, which are neither counted nor listed",
          "drop ix_doctor_deed_failed, then CREATE INDEX ix_doctor_deed_failed ON"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "queue", "check", "severity", "message", "fix"), STATES)
def test_a_state_that_harms_claims_is_found(
    engine: Engine, make: Make, queue: Any, check: str, severity: str, message: str, fix: str
) -> None:
    Models.metadata.create_all(engine)
    assert make is nothing or found(engine, queue, check) == []

    make(engine)

    (finding,) = found(engine, queue, check)
    assert (finding.severity, finding.check) == (severity, check)
    assert message in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("make", "queue", "check"),
    [
        state("table", Mail.metadata.drop_all, Mail, "table"),
        state("strategy", nothing, JobQueue(Mail, strategy="held"), "strategy", on=("sqlite",)),
    ],
)
def test_what_the_other_checks_need_is_the_only_finding(
    engine: Engine, make: Make, queue: Any, check: str
) -> None:
    make(engine)

    assert [each.check for each in examined(engine, queue).findings] == [check]


@pytest.mark.parametrize("columns", ["", "status, id"])
def test_an_index_that_is_missing_or_short_is_found_in_a_full_table_too(
    engine: Engine, columns: str
) -> None:
    replace_index(engine, "claim", columns)
    add_mails(engine, 5_000)

    (finding,) = found(engine, Mail, "index")

    assert finding.severity is ERROR


@pytest.mark.only_on("postgresql")
def test_statistics_and_dead_rows_of_a_table_that_nobody_vacuums_are_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dialects.postgresql.examination._DEAD_ROWS", 100)
    run(engine, "ALTER TABLE doctor_mail SET (autovacuum_enabled = false)")
    run(engine, "INSERT INTO doctor_mail (status, priority, recipient) "
        "SELECT 'unclaimed', 1, 'r' FROM generate_series(1, 6000)")  # fmt: skip
    run(engine, "UPDATE doctor_mail SET priority = priority + 1")
    run(engine, "UPDATE doctor_mail SET priority = priority + 1")
    engine.dispose()  # the end of a session reports its counts soon

    statistics, dead = (until_found(engine, check) for check in ("statistics", "dead_rows"))

    assert "rows have changed since the table was analyzed" in statistics.message
    assert "ANALYZE the table (doctor_mail)" in statistics.fix
    assert "dead rows beside" in dead.message
    assert "VACUUM doctor_mail" in dead.fix
    assert "sa_jobqueue.migration.tune_storage(op, 'doctor_mail')" in dead.fix


def until_found(engine: Engine, check: str) -> Finding:
    """Examine again until this check has a finding."""
    findings: list[Finding] = []
    until(lambda: findings.extend(found(engine, Mail, check)) or findings)
    return findings[0]


# -- isolation and the binary log ---------------------------------------


@pytest.mark.parametrize(
    ("queue", "severity", "message"),
    [
        state("skip_locked", Mail, WARNING, "could not serialize access", on=("postgresql",)),
        state("strict_order", JobQueue(Mail, strict_order=True), ERROR, "refuses it",
              on=("postgresql",)),
        state("serial_by", DEEDS, ERROR, "refuses it", on=("postgresql",)),
        state("update_then_select", AT_ONCE, WARNING, "update_then_select deadlocks", on=INNODB),
    ],
)  # fmt: skip
def test_an_isolation_level_that_harms_claims_is_found(
    engine: Engine, queue: Any, severity: Severity, message: str
) -> None:
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    committed = engine.execution_options(isolation_level="READ COMMITTED")

    (finding,) = found(repeatable, queue, "isolation")

    assert (finding.severity, found(committed, queue, "isolation")) == (severity, [])
    assert message in finding.message
    assert 'isolation_level="READ COMMITTED"' in finding.fix


@pytest.mark.only_on(*INNODB)
@pytest.mark.parametrize(
    ("settings", "severity", "message"),
    [
        ("'log_bin', 'ON' UNION SELECT 'binlog_format', 'STATEMENT'", ERROR, "error 1665"),
        ("'log_bin', 'OFF' UNION SELECT 'binlog_format', 'STATEMENT'", None, ""),
        ("'log_bin', 'ON' UNION SELECT 'binlog_format', 'ROW'", None, ""),
        ("'innodb_snapshot_isolation', 'ON'", Severity.OK, "get error 1020"),
        ("'innodb_snapshot_isolation', 'OFF'", None, ""),
    ],
)
def test_settings_that_make_the_server_refuse_statements_are_named(
    engine: Engine, settings: str, severity: Severity | None, message: str
) -> None:
    with answering(engine, "SHOW VARIABLES", f"SELECT {settings}"):
        report = examined(engine, Mail, "isolation")

    said = [each for each in (*report.findings, *report.facts) if "begin as" not in each.message]
    said = [each for each in said if each.check == "isolation"]
    assert [each.severity for each in said] == ([severity] if severity else [])
    assert all(message in each.message for each in said)


@pytest.mark.only_on(*INNODB)
def test_plans_in_a_form_that_nobody_knows_are_no_verdict(engine: Engine) -> None:
    """As those of TiDB, for which assume_locks() was called."""
    with answering(engine, "EXPLAIN", "SELECT 'Limit_7' AS id, 3.0 AS estRows"):
        (finding,) = found(engine, Mail, "index")

    assert finding.is_unchecked
    assert "prints plans in a form of its own" in finding.message
    assert "sa-jobqueue sql" in finding.fix


@contextmanager
def answering(engine: Engine, words: str, instead: str) -> Iterator[None]:
    """Have the server answer another statement where one begins with these words."""

    def answer(_: Any, __: Any, sent: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return (instead, ()) if sent.strip().startswith(words) else (sent, parameters)

    event.listen(engine, "before_cursor_execute", answer, retval=True)
    yield
    event.remove(engine, "before_cursor_execute", answer)
