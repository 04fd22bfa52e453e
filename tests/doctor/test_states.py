"""Each state of a database that slows or breaks claims is found, and its fix is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from sa_jobqueue import JobQueue
from sa_jobqueue.dialects import database_of_engine
from sa_jobqueue.doctor import Finding, Severity
from tests.models import Base as Models
from tests.models import Message
from tests.servers import DATABASES
from tests.support import until

from .models import (
    Base,
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


def at(name: str, *values: Any, on: Sequence[str] = DATABASES) -> Any:
    """Name a case, and the databases where it can occur."""
    return pytest.param(*values, id=name, marks=pytest.mark.only_on(*on))


def state(case: Any, said: str) -> Any:
    return pytest.param(*case.values, said, id=case.id, marks=case.marks)


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
STRICT = JobQueue(Mail, strict_order=True)
OLDER = statement("ALTER TABLE doctor_mail DROP COLUMN touched")
SHORT_PLAIN = statement(
    "DROP INDEX ix_due; CREATE INDEX ix_other ON doctor_subscription (kind, id)"
)
OTHER_KIND = statement(
    "DROP INDEX ix_due; "
    "CREATE INDEX ix_other ON doctor_subscription (kind, mailed, id) WHERE kind = 2"
)
WIDER = "status IN ('unclaimed', 'waiting')"
CLAIM, REAP = "status, priority, id", "status, owner_date"


def own_words(engine: Engine) -> None:
    add_mails(engine, 3, status="open")


#: What is done to the tables, the queue, and parts of what the doctor says, in their order.
STATES = [
    state(
        at("no table", Base.metadata.drop_all, Mail),
        "error [table] there is no table .. migrations",
    ),
    state(
        at("no column", OLDER, Mail), "error [table] .. lacks columns .. touched .. upgrade head"
    ),
    state(
        at("no advisory locks", nothing, advisory(), on=("mysql", "mariadb", "sqlite")),
        "error [strategy] .. no advisory locks .. fix: .. strategy='auto'",
    ),
    state(
        at("microseconds are lost", IMPRECISE, Mail, on=SERVERS),
        "error [columns] owner_date keeps .. so finishes are lost .. type_=timestamp_type()",
    ),
    state(
        at("no zone", ZONELESS, Mail, on=("postgresql",)),
        'error [columns] owner_date has no time zone .. postgresql_using="owner_date AT TIME ZONE',
    ),
    state(
        at("words of their own", own_words, Mail),
        "warning [statuses] .. ('open'): no claim takes them, since it looks for 'unclaimed' .. "
        "fix: .. __queue_args__ = {'names': {'unclaimed': 'open'}}",
    ),
    state(
        at("no claim index", indexed("claim"), Mail),
        f"error [index] no index serves the claim, which wants ({CLAIM}) .. fix: "
        f"CREATE INDEX ix_doctor_mail_claim ON doctor_mail ({CLAIM}) .. (op, Mail))",
    ),
    state(
        at("another name", RENAMED, Mail, on=("mariadb",)),
        "error [index] the claim names the index ix_doctor_mail_claim, which is missing",
    ),
    state(
        at("a short index", indexed("claim", "status, id"), Mail),
        f"error [index] ix_doctor_mail_claim (status, id) does not fit the claim, which wants "
        f"({CLAIM}) .. fix: drop ix_doctor_mail_claim, then CREATE INDEX ix_doctor_mail_claim .. "
        "create_job_indexes(op, Mail, replace=True)",
    ),
    state(
        at("another predicate", indexed("claim", CLAIM, "status = 'new'"), Mail, on=PARTIAL),
        "error [index] .. does not fit the claim .. WHERE status = 'unclaimed' .. replace=True",
    ),
    state(
        at("a wider predicate", indexed("claim", CLAIM, WIDER), Mail, on=("postgresql",)),
        "warning [index] .. Alembic does not see that the predicate has changed .. replace=True",
    ),
    state(
        at("no predicate", indexed("claim", CLAIM), Mail, on=PARTIAL),
        "warning [index] .. it holds finished jobs too .. WHERE status = 'unclaimed' would do",
    ),
    state(
        at("an unusable index", UNUSABLE, Mail, on=SERVERS),
        "error [index] ix_doctor_mail_claim .. serves no statement: it is .. fix: drop",
    ),
    state(
        at("an order of its own", nothing, BY_RECIPIENT),
        "error [index] no index serves the claim, which wants (status, recipient DESC, id) .. "
        "create_job_indexes(op, queue)); declare it in __table_args__ too",
    ),
    state(
        at("a class with equality", Models.metadata.create_all, Message),
        "error [index] the claim index of Message begins with channel .. as in "
        "JobQueue(Message, Message.channel == ..)",
    ),
    state(
        at(
            "no index of a plain class",
            statement("DROP INDEX ix_due"),
            advisory(),
            on=("postgresql",),
        ),
        "error [index] no index serves the claim, which wants (kind, mailed, id) .. CREATE INDEX",
    ),
    state(
        at("a plain class with a short index", SHORT_PLAIN, advisory(), on=("postgresql",)),
        "error [index] no index serves the claim, which wants (kind, mailed, id)",
    ),
    state(
        at("an index for another kind", OTHER_KIND, advisory(), on=("postgresql",)),
        "error [index] the predicate of ix_other .. WHERE (kind = 2) does not fit the claim",
    ),
    state(
        at("an order beside a range", nothing, BESIDE_RANGE, on=("postgresql",)),
        "error [index] .. can serve both the range of doctor_subscription.mailed .. use rounds",
    ),
    state(
        at("no reap index", indexed("reap"), Mail),
        f"warning [reap] no index serves reap(), which wants ({REAP}) .. "
        "create_job_indexes(op, Mail)",
    ),
    state(
        at("another reap index", indexed("reap", "status, owner"), Mail),
        "warning [reap] ix_doctor_mail_reap (status, owner) does not fit reap() .. fix: drop "
        f"ix_doctor_mail_reap, then CREATE INDEX ix_doctor_mail_reap ON doctor_mail ({REAP})",
    ),
    state(
        at("another reap predicate", indexed("reap", REAP, "status = 'taken'"), Mail, on=PARTIAL),
        f"warning [reap] .. does not fit reap(), which wants ({REAP}) WHERE status = 'claimed'",
    ),
    state(
        at("no reap index of its own", nothing, SENDING, on=PARTIAL),
        f"warning [reap] .. does not fit reap(), which wants ({REAP}) WHERE status = 'sending' .. "
        "fix: CREATE INDEX ix_doctor_mail_reap_sending ON .. ; declare it in __table_args__",
    ),
    state(
        at("no key index", indexed("key_client", of=Deed), DEEDS),
        "warning [index] no index serves the search for the next job of each .. "
        "create_job_indexes(op, Deed)",
    ),
    state(
        at("another key index", indexed("key_client", "status", of=Deed), DEEDS),
        "warning [index] .. (status) does not fit the search for the next job of each .. fix: drop",
    ),
    state(
        at("no failed index", indexed("failed", of=Deed), Deed, on=PARTIAL),
        "warning [failed] no index serves the search for failed jobs .. CREATE INDEX",
    ),
    state(
        at("another failed index", indexed("failed", "status", of=Deed), Deed, on=PARTIAL),
        "warning [failed] .. (status) does not fit the search for failed jobs .. fix: drop "
        "ix_doctor_deed_failed, then CREATE INDEX ix_doctor_deed_failed ON",
        # on InnoDB the reap index finds them
    ),
]


@pytest.mark.parametrize(("make", "queue", "said"), STATES)
def test_a_state_that_harms_claims_is_found(
    engine: Engine, make: Make, queue: Any, said: str
) -> None:
    check = said.partition("[")[2].partition("]")[0]
    make(engine)

    (finding,) = found(engine, queue, check)

    pattern = ".*".join(re.escape(part.strip()) for part in said.split(" .. "))
    assert re.match(pattern, str(finding), re.DOTALL), f"{finding} is not like {said}"


@pytest.mark.parametrize(
    ("make", "queue", "check"),
    [
        at("table", Mail.metadata.drop_all, Mail, "table"),
        at("strategy", nothing, JobQueue(Mail, strategy="held"), "strategy", on=("sqlite",)),
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
        at("skip_locked", Mail, WARNING, "could not serialize access", on=("postgresql",)),
        at("strict_order", STRICT, ERROR, "refuses it", on=("postgresql",)),
        at("serial_by", DEEDS, ERROR, "refuses it", on=("postgresql",)),
        at("update_then_select", AT_ONCE, WARNING, "update_then_select deadlocks", on=INNODB),
    ],
)
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
def test_plans_in_a_form_that_nobody_knows_are_no_verdict(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of TiDB, for which assume_locks() was called."""
    examination = type(database_of_engine(engine).examination())
    monkeypatch.setattr(examination, "explain_words", "EXPLAIN FORMAT=JSON")

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
