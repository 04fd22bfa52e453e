"""Predicates, indexes that fit, the ends of versions, reports; no server is asked."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import func, make_url

from sa_jobqueue import JobQueue, UnsupportedDatabase
from sa_jobqueue.dialects import Database
from sa_jobqueue.dialects.examination import IndexColumn, ServerIndex, normalised
from sa_jobqueue.dialects.innodb.mariadb import MariaDB
from sa_jobqueue.dialects.innodb.mysql import MySQL
from sa_jobqueue.dialects.postgresql.database import PostgreSQL
from sa_jobqueue.doctor import Finding, Report, Severity, server_checks
from sa_jobqueue.doctor.case import Case
from sa_jobqueue.doctor.server_checks import check_version
from sa_jobqueue.doctor.wanted_index import wanted_claim_index
from tests.models import Message, Task

from .models import Mail

PREDICATE = "((status)::text = 'unclaimed'::text)"


def index(*names: str, predicate: str | None = None, **more: Any) -> ServerIndex:
    columns = (name.partition(" ") for name in names)
    parts = tuple(IndexColumn(name, bool(descending)) for name, _, descending in columns)
    return ServerIndex("ix", parts, predicate=predicate, **more)


@pytest.mark.parametrize(
    ("printed", "written"),
    [
        (PREDICATE, "status = 'unclaimed'"),
        ("(status = 'unclaimed'::bpchar)", "\"status\" = 'unclaimed'"),
        (
            "((status)::text = ANY ((ARRAY['a'::character varying, 'b'::text])::text[]))",
            "status IN ('a', 'b')",
        ),
        (
            "((status)::text <> ALL ((ARRAY['a'::character varying, 'b'::text])::text[]))",
            "(status NOT IN ('a', 'b'))",
        ),
        ("(job_status = 'new'::character varying(16))", "job_status = 'new'"),
    ],
)
def test_a_predicate_is_the_same_however_it_is_printed(printed: str, written: str) -> None:
    assert normalised(printed) == normalised(written)
    assert normalised(printed) != normalised("status = 'done'")


@pytest.mark.parametrize(
    "fitting",
    [
        index("status", "priority", "id"),
        index("status", "priority", "id", "recipient"),
        index("status", "priority", implied=(IndexColumn("id"),)),
        index("status", "priority desc", "id desc"),
        index("priority", "id", predicate=PREDICATE),
    ],
)
def test_an_index_fits_that_leads_to_the_jobs_in_order(fitting: ServerIndex) -> None:
    wanted = wanted_claim_index(JobQueue(Mail).plan.spec)

    assert wanted.fitted_by(fitting, "status = 'unclaimed'")


@pytest.mark.parametrize(
    "unfit",
    [
        index("status"),
        index("status", "id", "priority"),
        index("status", "priority desc", "id"),
        index("status", "owner", "priority", "id"),
        index("priority", "id"),
        index("priority", "id", predicate="(status = 'done'::text)"),
        index("status", "priority", "id", ordered=False),
        index("status", "priority", "id", unusable="it is invalid"),
    ],
)
def test_an_index_does_not_fit_that_reads_or_sorts_more(unfit: ServerIndex) -> None:
    wanted = wanted_claim_index(JobQueue(Mail).plan.spec)

    assert not wanted.fitted_by(unfit, "status = 'unclaimed'")


def test_equality_columns_lead_in_any_order_where_they_are_compared() -> None:
    by_channel = wanted_claim_index(JobQueue(Message, Message.channel == "sms").plan.spec)
    of_all = wanted_claim_index(JobQueue(Message).plan.spec)
    declared = index("channel", "message_status", "sequence desc", "id")
    turned = index("message_status", "channel", "sequence desc", "id")

    assert by_channel.fitted_by(declared, None)
    assert by_channel.fitted_by(turned, None)
    assert not of_all.fitted_by(declared, None)
    assert str(of_all) == "(message_status, sequence DESC, id)"


def test_a_queue_with_its_own_status_wants_its_own_predicate() -> None:
    queue = JobQueue(Task, ready="packed", during="sending")

    wanted = wanted_claim_index(queue.plan.spec)

    dialect = make_url("postgresql+psycopg2://").get_dialect()()
    predicate = wanted.predicate(PostgreSQL(None).examination(), dialect)
    assert predicate == "status = 'packed'"


def test_only_the_plan_tells_whether_an_index_serves_an_order_by_expressions() -> None:
    wanted = wanted_claim_index(JobQueue(Mail, order_by=func.lower(Mail.recipient)).plan.spec)

    assert wanted.order is None
    assert not wanted.fitted_by(index("status", "id"), None)


# -- versions -----------------------------------------------------------


def told(database: Database, today: date, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return severity and message of the version check on a day."""

    class Today:
        def execute(self, _: object) -> Today:
            return self

        def scalar_one(self) -> Today:
            return self

        def date(self) -> date:
            return today

    monkeypatch.setattr(Case, "connection", Today())
    case = Case(None, JobQueue(Mail), 1, timedelta(0))  # type: ignore[arg-type]  # the server is not used
    vars(case)["database"] = database
    (answer,) = check_version(case)
    return answer.severity.value, answer.message


@pytest.mark.parametrize(
    ("database", "severity", "message"),
    [
        (MySQL((5, 7, 44)), "warning", "MySQL 5.7.44 has had no updates since 2023-10-31"),
        (MySQL((8, 4, 1)), "ok", "MySQL 8.4.1 gets updates until 2032-04-30"),
        (MySQL((9, 1, 0)), "warning", "MySQL 9.1.0 is a release between two long-term releases"),
        (MySQL((99, 1)), "ok", "MySQL 99.1"),
        (MariaDB((10, 5, 2)), "warning", "MariaDB 10.5.2 has had no updates"),
        (MariaDB((11, 2, 2)), "warning", "MariaDB 11.2.2 is a release between two long-term"),
        (PostgreSQL((16, 4)), "ok", "PostgreSQL 16.4 gets updates until 2028-11-09"),
    ],
)
def test_a_server_without_updates_is_named(
    database: Database, severity: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = told(database, date(2026, 11, 21), monkeypatch)

    assert (found, said[: len(message)]) == (severity, message)


def test_a_server_whose_updates_end_soon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    end = date(2028, 11, 9)

    before = told(PostgreSQL((16, 4)), end - server_checks.NOTICE, monkeypatch)
    soon = told(PostgreSQL((16, 4)), end - timedelta(days=1), monkeypatch)

    assert before[0] == "ok"
    assert soon == ("warning", "PostgreSQL 16.4 gets updates only until 2028-11-09")


# -- reports ------------------------------------------------------------


def test_a_report_reads_as_text_errors_first() -> None:
    error = Finding("index", Severity.ERROR, "it is missing", "make it")
    warning = Finding("snapshot", Severity.WARNING, "it is old", "end it")
    fact = Finding("version", Severity.OK, "it is new")
    report = Report("a queue", "SQLite 3", (error, warning), (fact,))

    assert (report.errors, report.warnings) == ((error,), (warning,))
    assert str(report).splitlines() == [
        "a queue on SQLite 3",
        "error [index] it is missing",
        "  fix: make it",
        "warning [snapshot] it is old",
        "  fix: end it",
        "ok [version] it is new",
    ]


def test_a_database_that_nobody_can_examine_is_refused_with_the_way_out() -> None:
    class Tortoise(Database):
        title = "Tortoise"

    with pytest.raises(
        UnsupportedDatabase, match=r"cannot read the plans of Tortoise.*examination"
    ):
        Tortoise((1,)).examination()
