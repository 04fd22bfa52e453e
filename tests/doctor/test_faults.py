"""Each planted fault is found on the databases where it can occur, and its fix is named."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import Finding, Report, Severity, examine
from sa_jobqueue.model.indexes import index_of
from tests.contract.owners.restricted_user import restricted_user
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import SERVERS, make_engine

from .models import (
    Deed,
    Mail,
    add_mails,
    advisory,
    old_snapshot,
    replace_claim_index,
    replace_index,
    run,
)
from .pooler import Pooler

#: MariaDB shows a copy of its locks, which stays old while other connections ask for it.
pytestmark = pytest.mark.xdist_group("plans")

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def found(report: Report, check: str) -> Finding:
    """Return the only finding of a check."""
    (finding,) = (finding for finding in report.findings if finding.check == check)
    return finding


def checks(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


def until_found(engine: Engine, check: str, **how: Any) -> Finding:
    """Examine again until this check has a finding."""
    deadline = time.monotonic() + 60
    while check not in checks(report := examine(engine, Mail, run=False, **how)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found(report, check)


@pytest.mark.only_on("postgresql")
def test_a_table_that_has_outgrown_its_statistics_is_found(engine: Engine) -> None:
    run(engine, "ALTER TABLE doctor_mail SET (autovacuum_enabled = false)")
    run(engine, "INSERT INTO doctor_mail (recipient) SELECT 'r' FROM generate_series(1, 6000)")

    finding = until_found(engine, "statistics")

    assert finding.message.startswith("6,000 rows have changed since the table was analyzed")
    assert finding.fix.startswith("ANALYZE the table (doctor_mail)")


@pytest.mark.parametrize("number", [0, 5_000])
def test_a_missing_index_is_found(engine: Engine, number: int) -> None:
    replace_claim_index(engine)
    if number:
        add_mails(engine, number)

    finding = found(examine(engine, Mail), "index")

    assert finding.severity is ERROR
    assert "no index serves the claim, which wants (status, priority, id)" in finding.message
    assert finding.fix.startswith("CREATE INDEX ix_doctor_mail_claim ON doctor_mail (status,")


@pytest.mark.parametrize(("check", "purpose"), [("index", "key_client"), ("failed", "failed")])
def test_other_columns_of_a_declared_index_are_found(
    engine: Engine, check: str, purpose: str
) -> None:
    queue = JobQueue(Deed, serial_by=Deed.client)
    index = index_of(queue.mapping.table, purpose)
    assert index is not None
    assert check not in checks(examine(engine, queue, run=False))
    index.drop(engine)
    run(engine, f"CREATE INDEX {index.name} ON doctor_deed (status)")

    finding = found(examine(engine, queue, run=False), check)

    assert finding.severity is WARNING
    assert f"{index.name} (status) is not the model's index of (status, " in finding.message
    assert finding.fix.startswith(f"drop {index.name}, then CREATE INDEX {index.name} ON")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(("check", "purpose"), [("index", "key_client"), ("failed", "failed")])
def test_an_invalid_declared_index_is_found(engine: Engine, check: str, purpose: str) -> None:
    queue = JobQueue(Deed, serial_by=Deed.client)
    index = index_of(queue.mapping.table, purpose)
    assert index is not None
    name = f"'{index.name}'::regclass"
    run(engine, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {name}")

    finding = found(examine(engine, queue, run=False), check)

    assert "serves no statement, since it is invalid" in finding.message
    assert finding.fix.startswith(f"drop {index.name}, then CREATE INDEX {index.name} ON")


@pytest.mark.parametrize("number", [0, 5_000])
def test_an_index_one_order_column_short_is_found(engine: Engine, number: int) -> None:
    replace_claim_index(engine, "status", "id")
    if number:
        add_mails(engine, number)

    report = examine(engine, Mail)

    assert found(report, "index").severity is ERROR
    assert "ix_doctor_mail_claim (status, id) does not fit" in found(report, "index").message
    assert found(report, "index").fix.startswith("drop ix_doctor_mail_claim, then CREATE INDEX")
    assert "create_job_indexes(op, Mail, replace=True)" in found(report, "index").fix
    assert "the claim sorts" in found(report, "plan").message


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.parametrize("number", [0, 5_000])
def test_a_wrong_predicate_is_found(engine: Engine, number: int) -> None:
    replace_claim_index(engine, "status", "priority", "id", where="status = 'new'")
    if number:
        add_mails(engine, number)

    finding = found(examine(engine, Mail), "index")

    assert finding.severity is ERROR
    assert "which wants (status, priority, id) WHERE status = 'unclaimed'" in finding.message
    assert "'unclaimed'" in finding.fix


@pytest.mark.parametrize("number", [0, 5_000])
def test_a_sort_in_the_plan_is_found(engine: Engine, number: int) -> None:
    if number:
        add_mails(engine, number)

    report = examine(engine, JobQueue(Mail, order_by=Mail.recipient.desc()))

    finding = found(report, "plan")
    assert finding.severity is ERROR
    assert finding.message == (
        "the claim sorts: no index gives its rows in the order recipient DESC, id"
    )
    assert "(status, recipient DESC, id)" in finding.fix


PRECISIONS = {
    "postgresql": "ALTER TABLE doctor_mail ALTER owner_date TYPE timestamp(3) with time zone",
    "mysql": "ALTER TABLE doctor_mail MODIFY owner_date DATETIME(3)",
    "mariadb": "ALTER TABLE doctor_mail MODIFY owner_date DATETIME",
}


@pytest.mark.only_on(*SERVERS)
def test_a_column_that_loses_microseconds_is_found(engine: Engine, db_alias: str) -> None:
    run(engine, PRECISIONS[db_alias])

    finding = found(examine(engine, Mail, run=False), "columns")

    assert finding.severity is ERROR
    assert "in the database, so finishes are lost" in finding.message
    assert "type_=timestamp_type()" in finding.fix


@pytest.mark.only_on("mysql", "mariadb")
def test_repeatable_read_with_update_then_select_is_found(engine: Engine) -> None:
    queue = JobQueue(Mail, strategy="update_then_select")

    finding = found(examine(engine, queue), "isolation")
    committed = engine.execution_options(isolation_level="READ COMMITTED")

    assert finding.severity is WARNING
    assert "REPEATABLE READ: update_then_select deadlocks" in finding.message
    assert 'isolation_level="READ COMMITTED"' in finding.fix
    assert "isolation" not in checks(examine(committed, queue))


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("queue", "severity"),
    [
        (JobQueue(Mail), WARNING),
        (JobQueue(Mail, strict_order=True), ERROR),
        (JobQueue(Mail, serial_by=Mail.id), ERROR),
    ],
)
def test_repeatable_read_is_found_where_it_makes_claims_fail(
    engine: Engine, queue: JobQueue[Mail], severity: Severity
) -> None:
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")

    finding = found(examine(repeatable, queue), "isolation")

    assert finding.severity is severity
    assert "READ COMMITTED" in finding.fix


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
    finding = found(examine(through_pgbouncer, Mail), "pooler")
    by_advisory_locks = found(examine(through_pgbouncer, advisory()), "pooler")

    assert (finding.severity, by_advisory_locks.severity) == (WARNING, ERROR)
    assert "a pooler such as PgBouncer" in finding.message
    assert "direct URL" in finding.fix


@pytest.mark.only_on("mysql", "mariadb")
def test_a_pooler_that_greets_by_a_number_of_its_own_is_found(engine: Engine) -> None:
    with Pooler(engine.url) as pooler:
        through_pooler = make_engine(pooler.url, poolclass=NullPool)

        finding = found(examine(through_pooler, Mail), "pooler")

    assert finding.severity is WARNING
    assert "a pooler such as ProxySQL or MaxScale" in finding.message
    assert "direct URL" in finding.fix
    assert "pooler" not in checks(examine(engine, Mail))


@pytest.mark.only_on(*SERVERS)
def test_a_hidden_process_list_is_found(engine: Engine, db_alias: str) -> None:
    privilege = "pg_read_all_stats" if db_alias == "postgresql" else "PROCESS"
    with restricted_user(engine) as theirs:
        finding = found(examine(theirs, Mail), "owners")

        assert finding.severity is WARNING
        assert "does not see other users'" in finding.message
        assert f"GRANT {privilege}" in finding.fix
        assert str(theirs.url.username) in finding.fix


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}])
def test_an_old_snapshot_is_found(engine: Engine, options: dict[str, Any]) -> None:
    second, ours = timedelta(seconds=1), engine.execution_options(**options)
    with old_snapshot(engine):
        finding = until_found(ours, "snapshot", old_snapshot=second)
        young = examine(ours, Mail, run=False, old_snapshot=timedelta(days=1))

    assert finding.severity is WARNING
    assert re.search(r"the oldest snapshot is \d+s old", finding.message)
    assert "end the transaction" in finding.fix
    assert [fact.check for fact in young.facts].count("snapshot") == 1
    assert "snapshot" not in checks(young)


# -- the reap index -----------------------------------------------


@pytest.mark.parametrize("columns", [(), ("owner_date",), ("status", "owner")])
def test_a_missing_or_wrong_reap_index_is_found(engine: Engine, columns: tuple[str, ...]) -> None:
    replace_index(engine, "reap", *columns)

    finding = found(examine(engine, Mail), "reap")

    assert finding.severity is WARNING
    assert "reap(), which wants (status, owner_date)" in finding.message
    create = "CREATE INDEX ix_doctor_mail_reap ON doctor_mail (status, owner_date)"
    assert create in finding.fix
    assert f"create_job_indexes(op, Mail{', replace=True' if columns else ''})" in finding.fix


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("status = 'taken'", "WHERE status = 'taken'"),
        ("", "also the finished jobs"),
    ],
)
def test_a_reap_index_with_another_predicate_is_found(
    engine: Engine, where: str, said: str
) -> None:
    replace_index(engine, "reap", "status", "owner_date", where=where)

    finding = found(examine(engine, Mail), "reap")

    assert finding.severity is WARNING
    assert said in normalised_spaces(finding.message)
    assert "WHERE status = 'claimed'" in finding.message


def normalised_spaces(message: str) -> str:
    """Write a predicate as it was given: PostgreSQL prints it with casts."""
    return message.replace("((status)::text = 'taken'::text)", "status = 'taken'")


@pytest.mark.only_on("postgresql", "sqlite")
def test_a_queues_own_status_without_a_reap_index_is_found(engine: Engine) -> None:
    queue = JobQueue(Mail, during="sending")

    finding = found(examine(engine, queue), "reap")
    create, _, declare = finding.fix.partition(";")
    run(engine, create)

    assert "reap(), which wants (status, owner_date) WHERE status = 'sending'" in finding.message
    assert create.startswith("CREATE INDEX ix_doctor_mail_reap_sending ON doctor_mail")
    assert "__table_args__" in declare
    assert "reap" not in checks(examine(engine, queue))


@pytest.mark.only_on("mysql", "mariadb")
def test_a_reap_index_without_a_predicate_holds_every_status(engine: Engine) -> None:
    assert "reap" not in checks(examine(engine, JobQueue(Mail, during="sending")))


# -- and some more ------------------------------------------------------


@pytest.mark.only_on("postgresql", "sqlite")
def test_an_index_that_holds_finished_rows_too_is_found(engine: Engine) -> None:
    replace_claim_index(engine, "status", "priority", "id")

    finding = found(examine(engine, Mail), "index")

    assert finding.severity is WARNING
    assert "also the finished jobs" in finding.message


@pytest.mark.only_on("postgresql")
def test_a_predicate_that_changed_and_still_serves_is_found(engine: Engine) -> None:
    replace_claim_index(
        engine, "status", "priority", "id", where="status IN ('unclaimed', 'waiting')"
    )

    finding = found(examine(engine, Mail), "index")

    assert finding.severity is WARNING
    assert "Alembic does not see that the predicate has changed" in finding.message


@pytest.mark.only_on(*SERVERS)
def test_an_index_that_the_planner_may_not_use_is_found(engine: Engine, db_alias: str) -> None:
    run(engine, UNUSABLE[db_alias])

    finding = found(examine(engine, Mail), "index")

    assert finding.severity is ERROR
    assert "serves no statement" in finding.message


UNUSABLE = {
    "postgresql": "UPDATE pg_index SET indisvalid = false "
    "WHERE indexrelid = CAST('ix_doctor_mail_claim' AS regclass)",
    "mysql": "ALTER TABLE doctor_mail ALTER INDEX ix_doctor_mail_claim INVISIBLE",
    "mariadb": "ALTER TABLE doctor_mail ALTER INDEX ix_doctor_mail_claim IGNORED",
}


@pytest.mark.only_on("postgresql")
def test_an_index_of_the_users_that_rules_out_hot_updates_is_named(engine: Engine) -> None:
    run(engine, "CREATE INDEX ix_by_owner ON doctor_mail (owner)")
    run(engine, "CREATE INDEX ix_by_recipient ON doctor_mail (recipient)")
    run(engine, "CREATE INDEX ix_done ON doctor_mail (recipient) WHERE status = 'done'")
    run(engine, "CREATE INDEX ix_holding ON doctor_mail (recipient) INCLUDE (owner_date)")
    run(engine, "CREATE INDEX ix_touched ON doctor_mail (touched)")  # changes with each UPDATE

    findings = [finding for finding in examine(engine, Mail).findings if finding.check == "updates"]

    names = ["ix_by_owner", "ix_done", "ix_holding", "ix_touched"]
    assert [finding.message.partition(" ")[0] for finding in findings] == names
    assert "keeps PostgreSQL from HOT updates" in findings[0].message
    assert findings[0].fix.startswith("drop ix_by_owner")
    assert "ix_holding (recipient) INCLUDE (owner_date) holds owner_date" in findings[2].message


@pytest.mark.only_on("postgresql")
def test_dead_rows_are_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.dialects.postgresql.examination._DEAD_ROWS", 100)
    run(engine, "ALTER TABLE doctor_mail SET (autovacuum_enabled = false)")
    add_mails(engine, 200)
    for _ in range(3):
        run(engine, "UPDATE doctor_mail SET priority = priority + 1")
    engine.dispose()  # the end of a session reports its counts soon

    finding = until_found(engine, "garbage")

    assert "00 dead rows beside" in finding.message
    assert "VACUUM doctor_mail" in finding.fix
    assert "sa_jobqueue.migration.tune_storage(op, 'doctor_mail')" in finding.fix


@pytest.mark.only_on("mysql", "mariadb")
def test_a_long_history_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.dialects.innodb.examination._HISTORY", 0)

    finding = found(examine(engine, Mail), "garbage")

    assert "history list length" in finding.message
    assert "end old transactions" in finding.fix


def test_a_table_that_is_not_there_is_the_only_finding_about_it(engine: Engine) -> None:
    Mail.metadata.drop_all(engine)

    report = examine(engine, Mail)

    assert [finding.check for finding in report.errors] == ["table"]
    assert "there is no table doctor_mail" in report.errors[0].message


def test_columns_that_wait_for_a_migration_are_the_only_finding(engine: Engine) -> None:
    replace_claim_index(engine)
    for name in ("priority", "touched"):
        run(engine, f"ALTER TABLE doctor_mail DROP COLUMN {name}")

    report = examine(engine, Mail)

    assert [finding.check for finding in report.findings] == ["table"]
    assert report.errors[0].message.endswith("lacks columns of the model: touched, priority")
    assert "alembic upgrade head" in report.errors[0].fix


@pytest.mark.only_on("mysql", "mariadb", "sqlite")
def test_a_strategy_that_cannot_run_is_found(engine: Engine) -> None:
    finding = found(examine(engine, advisory()), "strategy")

    assert finding.severity is ERROR
    assert "no advisory locks" in finding.message


@pytest.mark.only_on("postgresql")
def test_a_time_without_a_zone_in_the_database_is_found(engine: Engine) -> None:
    run(engine, "ALTER TABLE doctor_mail ALTER owner_date TYPE timestamp")

    finding = found(examine(engine, Mail, run=False), "columns")

    assert finding.severity is ERROR
    assert finding.message.startswith("owner_date has no time zone in the database")
    assert "postgresql_using=\"owner_date AT TIME ZONE 'UTC'\"" in finding.fix
