"""A database that is slow, away, or locked: a plain page, and no harm."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, QueuePool, event, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from sa_jobqueue.counts import reading
from sa_jobqueue.web import Access, Visitor, app, site
from sa_jobqueue.web.door import AT_ONCE
from tests.support import SERVERS, impatient, make_engine

from .conftest import Open, add, failed, keys_shown, statuses, texts
from .models import TABLES, Base, emails, visits

SHORT = timedelta(seconds=1)


#: A statement of seconds, on each database.
SLOW = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n "
    "WHERE i < 0",
    "postgresql": "SELECT pg_sleep(20)",
    "mysql": "SELECT COUNT(*) FROM information_schema.collations a, "
    "information_schema.collations b, information_schema.collations c, "
    "information_schema.collations d",
    "mariadb": "SELECT SLEEP(20)",
}


def test_a_page_whose_query_takes_too_long_says_so(
    page: TestClient, monkeypatch: pytest.MonkeyPatch, db_alias: str
) -> None:
    def slow(session: Session, queues: Any) -> Any:
        session.execute(text(SLOW[db_alias])).all()

    monkeypatch.setattr(reading, "TIME_LIMIT", SHORT)
    monkeypatch.setattr(reading, "overview", slow)

    answer = page.get("/queues/emails")

    assert answer.status_code == 503
    assert texts(answer, "h1") == ["This took too long"]
    assert "Traceback" not in answer.text


@pytest.fixture
def locked(engine: Engine, db_alias: str) -> Iterator[None]:
    """Lock the table of emails, as a migration does."""
    postgresql = db_alias == "postgresql"
    with engine.connect() as connection:
        how = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE" if postgresql else "LOCK TABLES {} WRITE"
        connection.exec_driver_sql(how.format("page_email"))
        yield
        connection.exec_driver_sql("SELECT 1" if postgresql else "UNLOCK TABLES")


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("locked")
def test_a_locked_table_is_one_line_of_the_first_page(
    open_page: Open, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TIME_LIMIT", SHORT)

    first, own = (open_page().get(path) for path in ("/", "/queues/emails"))

    assert (first.status_code, own.status_code) == (200, 503)
    assert keys_shown(first) == ["visits", "scans", "plain"]
    (line,) = re.findall(r'data-trouble="emails">(.*?)</p>', first.text)
    assert "cannot be read: " in line


def test_a_table_that_lacks_a_column_is_one_line_of_the_first_page(
    open_page: Open, fresh_database: URL
) -> None:
    engine = make_engine(fresh_database, poolclass=NullPool)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE page_visit")
        connection.exec_driver_sql("CREATE TABLE page_visit (region INT)")

    answer = open_page(on=engine, queues={"emails": emails, "visits": visits}).get("/")

    assert keys_shown(answer) == ["emails"]
    assert answer.text.count("data-trouble") == answer.text.count('data-trouble="visits"') == 1


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("locked")
def test_a_locked_table_leaves_the_application_its_threads_and_connections(db_url: URL) -> None:
    engine = make_engine(db_url, poolclass=QueuePool, pool_size=8, max_overflow=0)

    def own(_: Request) -> Response:
        with engine.connect() as connection:
            return PlainTextResponse(str(connection.scalar(text("SELECT 1"))))

    page = app(engine, {"emails": emails}, authorize=lambda _: Visitor("ada", Access.READ))
    shop = Starlette(routes=[Route("/own", own), Mount("/jobs", page)])
    with TestClient(shop) as client, ThreadPoolExecutor(20) as tabs:
        asked = [tabs.submit(client.get, "/jobs/queues/emails") for _ in range(20)]
        time.sleep(0.5)  # until each of them waits
        begun = time.monotonic()
        answers = [client.get("/own").text for _ in range(5)]
        needed = time.monotonic() - begun
        shown = [each.result() for each in asked]
    engine.dispose()

    assert (answers, needed < 1) == (["1"] * 5, True)
    assert {answer.status_code for answer in shown} == {503}
    assert [texts(answer, "h1") for answer in shown].count(["This page is busy"]) == 20 - AT_ONCE


@pytest.mark.only_on(*SERVERS)
def test_a_server_that_is_away_is_a_plain_page_until_it_is_back(
    open_page: Open, db_url: URL
) -> None:
    engine = make_engine(db_url, poolclass=NullPool)
    away: list[bool] = []

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, _args: object, options: dict[str, Any]) -> None:
        options["port"] = 1 if away else db_url.port

    page = open_page(on=engine)
    before = page.get("/")
    away.append(True)
    meanwhile = [page.get(path) for path in ("/", "/queues/emails", "/doctor", "/workers")]
    away.clear()
    after = page.get("/")

    assert [answer.status_code for answer in meanwhile] == [503, 503, 503, 503]
    assert texts(meanwhile[0], "h1") == ["The database does not answer"]
    assert (before.status_code, after.status_code) == (200, 200)


@pytest.mark.parametrize("missing", ["pauses", "workers"])
def test_a_control_table_that_is_missing_leaves_the_pages_of_queues_as_they_are(
    open_page: Open, fresh_database: URL, missing: str
) -> None:
    engine = make_engine(fresh_database)
    left_out = getattr(TABLES, missing)
    Base.metadata.create_all(
        engine, [table for table in Base.metadata.sorted_tables if table is not left_out]
    )
    page = open_page(on=engine, queues={"emails": emails})

    seen = [page.get(path) for path in ("/", "/queues/emails", "/workers")]
    pressed = page.post("/queues/emails", data={"verb": "pause"})
    engine.dispose()

    workers = 400 if missing == "workers" else 200
    assert [answer.status_code for answer in seen] == [200, 200, workers]
    assert "Pause" not in texts(seen[1], "button")
    assert pressed.status_code == (400 if missing == "pauses" else 303)


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (OperationalError, 503, "The database does not answer"),
        (ProgrammingError, 500, "The database refuses"),
    ],
)
def test_an_error_in_the_middle_of_a_page_is_told_to_the_log_without_the_parameters(
    page: TestClient,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    error: type[DBAPIError],
    status: int,
    title: str,
) -> None:
    def cut(*_: Any) -> None:
        raise error("SELECT ?", {"name": "a secret"}, Exception("no such column: b"))

    event.listen(engine, "before_cursor_execute", cut)
    try:
        answer = page.get("/queues/emails")
    finally:
        event.remove(engine, "before_cursor_execute", cut)

    assert (answer.status_code, texts(answer, "h1")) == (status, [title])
    assert "no such column: b" in caplog.text
    assert "no such column" not in answer.text
    assert "a secret" not in caplog.text + answer.text


def test_rows_that_somebody_has_locked_are_not_waited_for_for_ever(
    open_page: Open, session: Session, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(on=impatient(engine))
    add(session, failed(1))
    monkeypatch.setattr(site, "TIME_LIMIT", SHORT)
    session.execute(text("UPDATE page_email SET priority = 3 WHERE id = 1"))
    form = {"verb": "retry", "key": "1", "confirm": "yes"}
    begun = time.monotonic()

    answer = page.post("/queues/emails", data=form)

    assert answer.status_code == 503
    assert time.monotonic() - begun < 8
    assert statuses(session) == {1: "failed"}
