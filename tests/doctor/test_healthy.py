"""A healthy queue has no finding; an examination changes nothing, and never crashes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim
from sa_jobqueue.doctor import Report, Severity, claim_checks, examine
from sa_jobqueue.doctor.case import Case
from sa_jobqueue.testing import assert_claim_is_indexed
from tests import models
from tests.contract.owners.restricted_user import restricted_user
from tests.support import SERVERS, STRATEGIES, impatient

from .models import (
    Base,
    Mail,
    Subscription,
    add_mails,
    advisory,
    replace_claim_index,
    replace_index,
)

#: MariaDB shows a copy of its locks, which stays old while other connections ask for it.
pytestmark = pytest.mark.xdist_group("plans")

#: So old that other tests' transactions on the server give no finding.
PATIENT = timedelta(days=1)


def unwell(report: Report) -> list[str]:
    """List the findings, except the server's age and what other tests left for VACUUM."""
    beside = ("version", "garbage")
    return [str(finding) for finding in report.findings if finding.check not in beside]


def committed(engine: Engine) -> Engine:
    """Begin transactions as the strategies of InnoDB ask for."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


@pytest.fixture
def all_models(engine: Engine) -> None:
    """Make the tables of tests.models anew; other tests use them too, so they stay.

    Rows that others deleted are read and locked until they are purged.
    """
    models.Base.metadata.drop_all(engine)
    models.Base.metadata.create_all(engine)


QUEUES: list[JobQueue[Any]] = [
    JobQueue(models.Email),
    JobQueue(models.Task),
    JobQueue(models.Message, models.Message.channel == "sms"),
    JobQueue(models.Pair),
    JobQueue(models.Cat),
    JobQueue(models.Dog),
    JobQueue(models.Letter),
    JobQueue(models.Order),
    JobQueue(models.Document),
    JobQueue(models.Email, models.Email.recipient.like("a%")),
    JobQueue(models.Email, strict_order=True),
]


@pytest.mark.usefixtures("all_models")
def test_an_empty_table_of_any_model_has_no_finding(engine: Engine) -> None:
    reports = [examine(engine, queue, old_snapshot=PATIENT) for queue in QUEUES]

    assert [unwell(report) for report in reports] == [[]] * len(QUEUES)
    assert all("walk" in fact.message for report in reports for fact in of(report, "plan"))


class Convened(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "idx_%(table_name)s_%(constraint_name)s"})


class Parcel(JobMixin, Convened):
    __tablename__ = "doctor_parcel"

    id: Mapped[int] = mapped_column(primary_key=True)


def test_our_own_indexes_are_known_by_the_names_of_a_convention_too(engine: Engine) -> None:
    Convened.metadata.create_all(engine)

    queues = [JobQueue(Parcel), JobQueue(Parcel, order_by=Parcel.id.desc())]
    updates = [examine(engine, queue, old_snapshot=PATIENT).findings for queue in queues]

    Convened.metadata.drop_all(engine)
    assert not [found for findings in updates for found in findings if "HOT" in found.message]


def of(report: Report, check: str) -> list[Any]:
    return [fact for fact in report.facts if fact.check == check]


@pytest.mark.parametrize("number", [3, 5_000])
def test_no_strategy_has_a_finding_whatever_the_size(
    engine: Engine, db_alias: str, number: int
) -> None:
    add_mails(engine, number)

    reports = [
        examine(committed(engine), JobQueue(Mail, strategy=strategy), old_snapshot=PATIENT)
        for strategy in STRATEGIES[db_alias]
    ]

    assert [unwell(report) for report in reports] == [[]] * len(reports)
    assert {report.cost.claimed for report in reports if report.cost} == {min(number, 100)}


def test_a_table_with_few_jobs_among_many_done_has_no_finding(engine: Engine) -> None:
    add_mails(engine, 5_000, status="done")
    add_mails(engine, 20)

    report = examine(engine, Mail, old_snapshot=PATIENT)

    assert unwell(report) == []
    assert report.cost is not None
    assert report.cost.claimed == 20


@pytest.mark.only_on(*SERVERS)
def test_the_rows_of_a_batch_are_counted(engine: Engine) -> None:
    add_mails(engine, 5_000)

    cost = examine(engine, Mail, limit=50).cost

    assert cost is not None
    assert cost.rows_read is not None
    assert cost.rows_locked is not None
    assert cost.claimed == 50
    assert 50 <= cost.rows_read <= 300
    assert 50 <= cost.rows_locked <= 120


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("many", [500, 10_000])
def test_rows_locked_in_vain_are_found(
    engine: Engine, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dialects.innodb.examination._MANY_LOCKS", many)
    replace_claim_index(engine)
    add_mails(engine, 2_000)

    report = examine(engine, Mail, limit=10)

    (finding,) = (finding for finding in report.errors if finding.check == "cost")
    assert report.cost is not None
    assert report.cost.rows_locked is not None
    assert report.cost.rows_locked >= 2_000
    assert f"locks {report.cost.rows_locked:,} rows" in finding.message


@pytest.mark.only_on(*SERVERS)
def test_rows_read_in_vain_are_found(engine: Engine) -> None:
    add_mails(engine, 3_000)
    queue = JobQueue(Mail, Mail.recipient == "nobody")

    report = examine(engine, queue, limit=10, old_snapshot=PATIENT)

    (finding,) = (finding for finding in report.findings if finding.check != "version")
    assert finding.check == "cost"
    assert "a claim of 0 jobs reads 3,0" in finding.message
    assert '__queue_args__["equality"]' in finding.fix


def states(connection: Connection) -> list[Any]:
    return list(connection.execute(select(Mail.status, Mail.owner)).unique().all())


@pytest.mark.parametrize("last", [0, -1])
def test_an_examination_changes_nothing_and_leaves_nothing_locked(
    engine: Engine, db_alias: str, last: int
) -> None:
    strategy = STRATEGIES[db_alias][last]
    add_mails(engine, 10)

    with Session(engine) as session:
        examine(session, JobQueue(Mail, strategy=strategy))

        assert not session.in_transaction()
        with Session(impatient(engine)) as other:
            assert len(claim(other, Mail, owner="w", limit=10)) == 10
            other.rollback()
        with engine.connect() as connection:
            assert set(states(connection)) == {("unclaimed", None)}


@pytest.mark.only_on("mysql", "mariadb")
def test_the_hooks_of_a_session_count_as_in_a_claim(engine: Engine) -> None:
    with Session(engine) as session:
        plain = of(examine(session, Mail), "strategy")
        event.listen(session, "do_orm_execute", lambda _: None)
        hooked = of(examine(session, Mail), "strategy")

    assert [plain[0].message, hooked[0].message] == [
        "claims are made by skip_locked",
        "claims are made by candidates",
    ]


def test_without_run_an_examination_claims_and_counts_nothing(engine: Engine) -> None:
    add_mails(engine, 10)
    with Session(engine) as other:
        claim(other, Mail, owner="w", limit=10)  # all rows are locked

        report = examine(impatient(engine), Mail, run=False, old_snapshot=PATIENT)

        other.rollback()
    assert report.cost is None
    assert unwell(report) == []


def test_a_claim_that_would_wait_for_others_gives_up_soon(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_checks, "LOCK_WAIT", timedelta(seconds=1))
    add_mails(engine, 10)
    queue = JobQueue(Mail, strict_order=True)
    with Session(engine) as other:
        queue.claim(other, owner="w")

        began = monotonic()
        report = examine(stubborn(engine), queue, old_snapshot=PATIENT)
        waited = monotonic() - began

        other.rollback()
    (finding,) = (finding for finding in report.findings if finding.check == "cost")
    assert "could not be checked, because" in finding.message
    assert "again" in finding.fix
    assert waited < STUBBORN / 2


#: Seconds that SQLite waits for a lock by default.
STUBBORN = 60


def stubborn(engine: Engine) -> Engine:
    """Return an engine that waits long for locks; on servers, the usual engine."""
    if engine.dialect.name != "sqlite":
        return engine
    return create_engine(engine.url, connect_args={"timeout": STUBBORN})


@pytest.mark.only_on("mysql", "mariadb", "sqlite")
def test_an_examination_restores_the_lock_timeouts(engine: Engine, db_alias: str) -> None:
    variables = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout"
    asked = text("PRAGMA busy_timeout" if db_alias == "sqlite" else variables)
    with engine.connect() as connection, Session(connection) as session:
        before = connection.execute(asked).one()
        connection.rollback()

        examine(session, Mail)

        assert connection.execute(asked).one() == before


@pytest.mark.only_on(*SERVERS)
def test_an_examination_restores_the_planner_settings(engine: Engine) -> None:
    with engine.connect() as connection, Session(connection) as session:
        examine(session, Mail)

        if engine.dialect.name == "postgresql":
            assert connection.execute(text("SHOW enable_sort")).scalar() == "on"
            assert connection.execute(text("SHOW lock_timeout")).scalar() == "10s"


def test_a_plan_is_the_same_after_another_plan_was_favoured(engine: Engine) -> None:
    add_mails(engine, 3)
    with Session(engine) as session:
        case = Case(session, JobQueue(Mail), 100, PATIENT)

        statement = case.claim.statement

        plans = [case.plan(statement, name) for name in (None, "ix_doctor_mail_claim", None)]

    assert plans[0] == plans[2]
    if engine.dialect.name == "postgresql":
        assert plans[0] != plans[1]


def test_in_autocommit_an_examination_claims_nothing_and_the_report_tells_why(
    engine: Engine,
) -> None:
    add_mails(engine, 10)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    report = examine(autocommit, Mail, old_snapshot=PATIENT)

    (finding,) = (finding for finding in report.findings if finding.check != "version")
    assert (finding.check, finding.severity) == ("cost", Severity.WARNING)
    assert "AUTOCOMMIT" in finding.message
    with engine.connect() as connection:
        assert set(states(connection)) == {("unclaimed", None)}


@pytest.mark.only_on(*SERVERS)
def test_the_report_names_the_grants_that_a_restricted_user_lacks(
    engine: Engine, db_alias: str
) -> None:
    hidden = {
        "postgresql": {"snapshot"},
        "mysql": {"snapshot", "cost", "garbage"},
        "mariadb": {"snapshot", "cost"},
    }
    add_mails(engine, 10)
    with restricted_user(engine) as theirs:
        report = examine(theirs, Mail)

    unchecked = {
        finding.check: finding.fix
        for finding in report.warnings
        if finding.message.startswith("could not be checked, because")
    }
    assert unchecked.keys() == hidden[db_alias]
    assert all(fix.startswith("GRANT ") for fix in unchecked.values())


@pytest.mark.only_on(*SERVERS)
def test_the_report_names_what_the_database_refuses(engine: Engine) -> None:
    add_mails(engine, 10)
    with restricted_user(engine) as theirs:
        user = theirs.url.username
        whom = f"FROM {user}"
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"REVOKE ALL ON doctor_mail {whom}")
            else:
                database = engine.url.database
                connection.exec_driver_sql(f"REVOKE UPDATE ON {database}.* {whom}")

        report = examine(theirs, Mail)

    said = [finding for finding in report.findings if "the database says:" in finding.message]
    assert "cost" in {finding.check for finding in said}
    assert all(finding.fix for finding in said)


# -- what it takes ------------------------------------------------------


def test_a_session_in_a_transaction_is_refused(engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(select(Mail.id))

        with pytest.raises(ArgumentError, match="commit it or roll it back"):
            examine(session, Mail)

        assert session.in_transaction()


def test_an_async_engine_is_refused_with_the_way_out() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(ArgumentError, match=r"run_sync\(doctor\.examine, queue\)"):
        examine(engine, Mail)  # type: ignore[arg-type]  # the mistake under test


def test_an_async_session_examines_through_run_sync(tmp_path: Path) -> None:
    async def examined() -> Report:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            report = await session.run_sync(examine, Mail)
        await engine.dispose()
        return report

    assert unwell(asyncio.run(examined())) == []


@pytest.mark.parametrize("limit", [0, True, 1.5])
def test_a_batch_size_below_one_is_refused(limit: Any) -> None:
    with pytest.raises(ArgumentError, match="size of a batch"):
        examine(None, Mail, limit=limit)  # type: ignore[arg-type]  # the server is not used


@pytest.mark.only_on(*SERVERS)
def test_a_claim_that_marks_nothing_needs_no_reap_index(engine: Engine) -> None:
    replace_index(engine, "reap")

    report = examine(committed(engine), JobQueue(Mail, strategy="held"), old_snapshot=PATIENT)

    assert unwell(report) == []


def test_a_class_without_the_mixin_is_no_queue(engine: Engine) -> None:
    with pytest.raises(ArgumentError, match="add JobMixin"):
        examine(engine, Subscription)


# -- for users' own tests -----------------------------------------------


def test_a_migrated_schema_is_asserted(engine: Engine) -> None:
    assert_claim_is_indexed(engine, Mail)
    assert_claim_is_indexed(Session(engine), JobQueue(Mail))


def test_a_failed_assertion_tells_what_to_do(engine: Engine) -> None:
    replace_claim_index(engine, "status")

    with pytest.raises(AssertionError, match=r"does not fit the claim(.|\n)*fix: .*CREATE INDEX"):
        assert_claim_is_indexed(engine, Mail)


@pytest.mark.only_on("postgresql")
def test_an_assertion_is_not_about_the_server(engine: Engine) -> None:
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")

    assert_claim_is_indexed(repeatable, Mail)
    assert_claim_is_indexed(engine, advisory())


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("setting", ["ON", "OFF"])
def test_a_setting_that_refuses_changed_rows_is_named(engine: Engine, setting: str) -> None:
    reading = engine.execution_options(isolation_level="REPEATABLE READ")

    def switch(connection: Any, *_: Any) -> None:
        connection.cursor().execute(f"SET innodb_snapshot_isolation = {setting}")

    event.listen(engine, "connect", switch)
    engine.dispose()
    try:
        facts = of(examine(reading, Mail, run=False), "isolation")
    finally:
        event.remove(engine, "connect", switch)
        engine.dispose()

    named = [fact for fact in facts if "innodb_snapshot_isolation is ON" in fact.message]
    assert len(named) == (1 if setting == "ON" else 0)
