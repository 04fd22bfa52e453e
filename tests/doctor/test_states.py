"""Each state of a database that slows or breaks claims is found, and its fix is named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, func, text

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import Finding, Severity, examine
from tests.contract.owners.restricted_user import restricted_user
from tests.models import Base as Models
from tests.models import Message
from tests.servers import DATABASES
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import SERVERS, is_like, make_engine, until

from .models import (
    Base,
    Deed,
    Mail,
    Subscription,
    Timed,
    add_mails,
    advisory,
    answering,
    examined,
    found,
    replace_index,
    run,
)
from .pooler import Pooler

ERROR, WARNING = Severity.ERROR, Severity.WARNING
INNODB = ("mysql", "mariadb")
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


def at(make: Make, queue: Any, on: Sequence[str] = ()) -> tuple[Make, Any, pytest.MarkDecorator]:
    """Return a case, and the databases where it differs; else any one will do."""
    return make, queue, pytest.mark.only_on(*on) if on else pytest.mark.by_turns(*DATABASES)


DEEDS = JobQueue(Deed, serial_by=Deed.client)
SENDING = JobQueue(Mail, during="sending")
BY_RECIPIENT = JobQueue(Mail, order_by=Mail.recipient.desc())
BESIDE_RANGE = advisory(order_by=Subscription.id.desc())
AT_ONCE = JobQueue(Mail, strategy="update_then_select")
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
RENAMED = statement("ALTER TABLE doctor_mail RENAME INDEX ix_doctor_mail_claim TO ix_other")
ZONELESS = statement("ALTER TABLE doctor_mail ALTER owner_date TYPE timestamp")
OTHER_FORM = statement(
    "INSERT INTO doctor_timed (status, run_at) VALUES ('unclaimed', '2026-01-02T03:04:05Z')"
)
HALF_BUILT = statement(
    "CREATE INDEX ix_mail_ccnew ON doctor_mail (status); UPDATE pg_index SET indisvalid = false "
    "WHERE indexrelid = CAST('ix_mail_ccnew' AS regclass)"
)
STRICT = JobQueue(Mail, strict_order=True)
OLDER = statement("ALTER TABLE doctor_mail DROP COLUMN touched")
OTHER_KIND = statement(
    "DROP INDEX ix_due; "
    "CREATE INDEX ix_other ON doctor_subscription (kind, mailed, id) WHERE kind = 2"
)
SHORT = indexed("claim", "status, id")
WIDER = "status IN ('unclaimed', 'waiting')"
CLAIM, REAP = "status, priority, id", "status, owner_date"


def own_words(engine: Engine) -> None:
    add_mails(engine, 3, status="open")


POSTGRESQL = ("postgresql",)
ON_POSTGRESQL = pytest.mark.only_on(*POSTGRESQL)
NOT_POSTGRESQL = ("mysql", "mariadb", "sqlite")

#: Parts of what the doctor says, by what was done to the tables, and the queue.
STATES = {
    "error [table] there is no table .. migrations": at(Base.metadata.drop_all, Mail),
    "error [table] .. lacks columns .. touched .. upgrade head": at(OLDER, Mail),
    "error [strategy] .. no advisory locks .. strategy='auto'": at(
        nothing, advisory(), on=NOT_POSTGRESQL
    ),
    "error [columns] owner_date keeps .. finishes are lost .. type_=timestamp_type()": at(
        IMPRECISE, Mail, on=SERVERS
    ),
    'error [columns] owner_date has no time zone .. using="owner_date AT TIME ZONE': at(
        ZONELESS, Mail, on=POSTGRESQL
    ),
    "error [columns] run_at has a time that another program has written, '2026-01-02T03:04:05Z'"
    " .. strftime('%Y-%m-%d": at(OTHER_FORM, Timed, on=("sqlite",)),
    "warning [table] the table doctor_mail is kept by MyISAM .. ENGINE = InnoDB": at(
        statement("ALTER TABLE doctor_mail ENGINE = MyISAM"), Mail, on=INNODB
    ),
    "warning [index] ix_mail_ccnew is .. DROP INDEX CONCURRENTLY ix_mail_ccnew": at(
        HALF_BUILT, Mail, on=POSTGRESQL
    ),
    "warning [statuses] .. ('open'): no claim takes them .. {'unclaimed': 'open'}": at(
        own_words, Mail
    ),
    f"error [index] no index serves the claim, which wants ({CLAIM}) .. (op, Mail))": at(
        indexed("claim"), Mail, on=DATABASES
    ),
    f"error [index] ix_doctor_mail_claim (status, id) does not fit .. wants ({CLAIM})": at(
        SHORT, Mail, on=DATABASES
    ),
    "error [index] .. fix: drop ix_doctor_mail_claim, then CREATE .. replace=True)": at(
        SHORT, Mail
    ),
    "error [index] the claim names the index ix_doctor_mail_claim, which is missing": at(
        RENAMED, Mail, on=("mariadb",)
    ),
    "error [index] .. does not fit the claim .. WHERE status = 'unclaimed'": at(
        indexed("claim", CLAIM, "status = 'new'"), Mail, on=PARTIAL
    ),
    "warning [index] .. Alembic does not see that the predicate has changed": at(
        indexed("claim", CLAIM, WIDER), Mail, on=POSTGRESQL
    ),
    "warning [index] .. it holds finished jobs too .. WHERE status = 'unclaimed' would do": at(
        indexed("claim", CLAIM), Mail, on=PARTIAL
    ),
    "error [index] ix_doctor_mail_claim .. serves no statement: it is .. fix: drop": at(
        UNUSABLE, Mail, on=SERVERS
    ),
    "error [index] no index serves the claim, which wants (status, recipient DESC, id) .. "
    "create_job_indexes(op, queue)); declare it in __table_args__": at(nothing, BY_RECIPIENT),
    "error [index] the claim index of Message begins with channel .. JobQueue(Message, Mess": at(
        Models.metadata.create_all, Message
    ),
    "error [index] no index serves the claim, which wants (kind, mailed, id) .. CREATE": at(
        statement("DROP INDEX ix_due"), advisory(), on=POSTGRESQL
    ),
    "error [index] the predicate of ix_other .. WHERE (kind = 2) does not fit the claim": at(
        OTHER_KIND, advisory(), on=POSTGRESQL
    ),
    "error [index] .. serve both the range of doctor_subscription.mailed .. use rounds": at(
        nothing, BESIDE_RANGE, on=POSTGRESQL
    ),
    f"warning [reap] no index serves reap(), which wants ({REAP}) .. (op, Mail)": at(
        indexed("reap"), Mail
    ),
    "warning [reap] ix_doctor_mail_reap (status, owner) does not fit reap() .. fix: drop": at(
        indexed("reap", "status, owner"), Mail
    ),
    f"warning [reap] .. fit reap(), which wants ({REAP}) WHERE status = 'claimed'": at(
        indexed("reap", REAP, "status = 'taken'"), Mail, on=PARTIAL
    ),
    "warning [reap] .. does not fit reap() .. CREATE INDEX ix_doctor_mail_reap_sending ON": at(
        nothing, SENDING, on=PARTIAL
    ),
    "warning [index] no index serves the search for the next .. create_job_indexes(op, Deed)": at(
        indexed("key_client", of=Deed), DEEDS
    ),
    "warning [index] .. (status) does not fit the search for the next job of .. fix: drop": at(
        indexed("key_client", "status", of=Deed), DEEDS
    ),
    "warning [failed] .. the search for failed jobs .. CREATE INDEX ix_doctor_deed_failed": at(
        indexed("failed", of=Deed),
        Deed,
        on=PARTIAL,  # on InnoDB the reap index finds them
    ),
}


@pytest.mark.parametrize(
    ("said", "make", "queue"),
    [
        pytest.param(said, make, queue, marks=mark, id=re.sub(r"\W+", " ", said))
        for said, (make, queue, mark) in STATES.items()
    ],
)
def test_a_state_that_harms_claims_is_found(
    engine: Engine, said: str, make: Make, queue: Any
) -> None:
    if queue is not Mail:
        Base.metadata.create_all(engine)
    make(engine)

    (finding,) = found(engine, queue, said.partition("[")[2].partition("]")[0])

    assert is_like(str(finding), said)


@pytest.mark.only_on("sqlite")
def test_what_the_other_checks_need_is_the_only_finding(engine: Engine) -> None:
    unable = examined(engine, JobQueue(Mail, strategy="held")).findings
    Mail.metadata.drop_all(engine)
    absent = examined(engine, Mail).findings

    assert [each.check for each in (*unable, *absent)] == ["strategy", "table"]


OF_RECIPIENT = JobQueue(
    Mail, Mail.recipient == "r", order_by=(Mail.recipient.desc(), Mail.priority)
)
BY_CHANNEL = JobQueue(Message, Message.channel == "sms")


KIND, MAILED, KEY = Subscription.kind, Subscription.mailed, Subscription.id


@pytest.mark.by_turns(*DATABASES)
@pytest.mark.parametrize(
    ("queue", "columns", "fits"),
    [
        (JobQueue(Mail), "status, priority, id, recipient", True),
        (JobQueue(Mail), "status, priority DESC, id DESC", True),
        (JobQueue(Mail), "status", False),
        (JobQueue(Mail), "status, id, priority", False),
        (JobQueue(Mail), "status, priority DESC, id", False),
        (JobQueue(Mail), "status, owner, priority, id", False),
        (JobQueue(Mail), "priority, id", False),
        (OF_RECIPIENT, "status, recipient, priority, id", True),
        (OF_RECIPIENT, "recipient, status, priority, id", True),
        (OF_RECIPIENT, "status, priority, recipient, id", True),
        (OF_RECIPIENT, "status, priority, id", True),
        (OF_RECIPIENT, "status, touched, priority, id", False),
        (JobQueue(Mail, order_by=func.lower(Mail.recipient)), "status, id", False),
        (BY_CHANNEL, "channel, message_status, sequence DESC, id", True),
        (BY_CHANNEL, "message_status, channel, sequence DESC, id", True),
        *(
            pytest.param(queue, columns, fits, marks=ON_POSTGRESQL)
            for queue, columns, fits in [
                (advisory(), "kind, mailed", True),
                (advisory(), "kind, id", False),
                (advisory(), "kind", False),
                (advisory(KIND == 1), "kind", True),
                (advisory(order_by=MAILED), "kind, mailed, id", True),
                (advisory(order_by=[MAILED.desc(), KEY.desc()]), "kind, mailed, id", True),
                (advisory(KIND == 1, MAILED == 0, order_by=KEY), "kind, mailed, id", True),
                (advisory(KIND == 1, MAILED.between(0, 7)), "kind, mailed, id", True),
                (advisory(order_by=(KIND, MAILED)), "kind, mailed, id", True),
            ]
        ),
    ],
)
def test_an_index_fits_that_leads_to_the_jobs_in_order(
    engine: Engine, queue: JobQueue[Any], columns: str, fits: bool
) -> None:
    for base in (Base, Models):
        base.metadata.create_all(engine)
    replace_index(engine, "claim", columns, of=queue.entity)

    misfits = [each for each in found(engine, queue, "index") if each.severity is ERROR]

    assert (misfits == []) is fits
    if queue.entity is Message:
        Models.metadata.tables["message"].drop(engine)


@pytest.mark.only_on("postgresql")
def test_statistics_and_dead_rows_of_a_table_that_nobody_vacuums_are_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.doctor.postgresql._DEAD_ROWS", 100)
    run(engine, "ALTER TABLE doctor_mail SET (autovacuum_enabled = false)")
    rows = "SELECT 'unclaimed', 1, 'r' FROM generate_series(1, 6000)"
    run(engine, f"INSERT INTO doctor_mail (status, priority, recipient) {rows}")
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
    until(lambda: found(engine, Mail, check))
    return found(engine, Mail, check)[0]


# -- isolation and the binary log ---------------------------------------


@pytest.mark.parametrize(
    ("queue", "severity", "message"),
    [
        pytest.param(Mail, WARNING, "could not serialize access", marks=ON_POSTGRESQL),
        pytest.param(STRICT, ERROR, "refuses it", marks=ON_POSTGRESQL),
        pytest.param(DEEDS, ERROR, "refuses it", marks=ON_POSTGRESQL),
        pytest.param(AT_ONCE, WARNING, "deadlocks", marks=pytest.mark.only_on(*INNODB)),
    ],
)
def test_an_isolation_level_that_harms_claims_is_found(
    engine: Engine, queue: Any, severity: Severity, message: str
) -> None:
    Base.metadata.create_all(engine)
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    committed = engine.execution_options(isolation_level="READ COMMITTED")

    (finding,) = found(repeatable, queue, "isolation")

    assert (finding.severity, found(committed, queue, "isolation")) == (severity, [])
    assert message in finding.message
    assert 'isolation_level="READ COMMITTED"' in finding.fix


@pytest.mark.only_on(*INNODB)
@pytest.mark.by_turns(*INNODB)
@pytest.mark.parametrize(
    ("settings", "severity", "message"),
    [
        ("'log_bin', 'ON' UNION SELECT 'binlog_format', 'STATEMENT'", ERROR, "error 1665"),
        ("'log_bin', 'OFF' UNION SELECT 'binlog_format', 'STATEMENT'", None, ""),
        ("'log_bin', 'ON' UNION SELECT 'binlog_format', 'ROW'", None, ""),
        ("'sql_select_limit', '2'", ERROR, "sees so many of them"),
        ("'sql_select_limit', '18446744073709551615'", None, ""),
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


NOW = timedelta(0)


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
        (snapshot,) = found(theirs, Mail, "snapshot")

    assert snapshot.is_unchecked
    assert snapshot.fix.startswith(f"GRANT {privilege}")
    assert user in snapshot.fix


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
