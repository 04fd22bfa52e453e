"""A database that is slow, away, or locked: a plain page, and no harm."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, event, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.web import rendering, site
from tests.support import SERVERS, impatient, make_engine

from .conftest import Open, add, failed, statuses, texts
from .models import TABLES, Base, emails

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

    monkeypatch.setattr(rendering, "TIME_LIMIT", SHORT)
    monkeypatch.setattr(site, "overview", slow)

    answer = page.get("/")

    assert answer.status_code == 503
    assert texts(answer, "h1") == ["This took too long"]
    assert "Traceback" not in answer.text


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
