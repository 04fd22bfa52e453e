"""Who may see the page, what it refuses, and what every answer forbids the browser."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from sa_jobqueue import ArgumentError
from sa_jobqueue.web import Access, Visitor, app

from .conftest import Open, add, failed, refuse, statuses, texts
from .models import QUEUES

PAGES = ["/", "/queues/emails", "/queues/emails/jobs/1", "/workers", "/schedules", "/doctor"]


pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def test_a_page_without_authorize_cannot_be_made() -> None:
    made: Any = app

    with pytest.raises(TypeError, match="authorize"):
        made(create_engine("sqlite://"), QUEUES)


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/static/style.css", "/queues/other"])
def test_nobody_sees_anything_whom_authorize_does_not_know(engine: Any, path: str) -> None:
    stranger = TestClient(app(engine, QUEUES, authorize=refuse))

    answer = stranger.get(path)

    assert answer.status_code == 403
    assert not [name for name in QUEUES if name in answer.text]
    assert "Workers" not in answer.text


def test_authorize_may_be_async_and_sees_the_request(engine: Any) -> None:
    async def by_header(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        return None if name is None else Visitor(name, Access.READ)

    page = TestClient(app(engine, QUEUES, authorize=by_header))

    assert page.get("/workers").status_code == 403
    assert "bo <span" in page.get("/workers", headers={"x-user": "bo"}).text


def test_authorize_may_answer_by_itself(engine: Any) -> None:
    def to_login(_: Request) -> Visitor:
        raise HTTPException(302, headers={"Location": "/login"})

    page = TestClient(app(engine, QUEUES, authorize=to_login), follow_redirects=False)

    assert page.get("/").headers["location"] == "/login"


def test_an_answer_of_authorize_that_is_no_visitor_opens_nothing(engine: Any) -> None:
    def yes(_: Request) -> Any:
        return True

    answer = TestClient(app(engine, QUEUES, authorize=yes)).get("/")

    assert answer.status_code == 500
    assert "emails" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, 403),
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://testserver.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "", "Host": ""}, 403),
        ({}, 403),
    ],
)
def test_only_our_own_pages_may_change_something(
    open_page: Open, session: Session, headers: dict[str, str], status: int
) -> None:
    add(session, failed(1))
    page = open_page()
    page.headers.pop("Sec-Fetch-Site")
    form = {"verb": "retry", "key": "1", "confirm": "yes"}

    answer = page.post("/queues/emails", data=form, headers=headers)

    assert answer.status_code == status
    assert statuses(session) == {1: "unclaimed" if status == 200 else "failed"}


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/queues/emails", {"verb": "retry", "key": "1"}),
        ("/queues/emails", {"verb": "retry", "key": "1", "confirm": "yes"}),
        ("/queues/emails", {"verb": "retry_failed", "confirm": "yes"}),
        ("/queues/emails", {"verb": "pause"}),
        ("/schedules", {"verb": "pause", "name": "morning"}),
    ],
)
def test_a_reader_may_change_nothing(
    open_page: Open,
    session: Session,
    caplog: pytest.LogCaptureFixture,
    path: str,
    form: dict[str, str],
) -> None:
    add(session, failed(1))

    with caplog.at_level(logging.WARNING, "sa_jobqueue.web"):
        answer = open_page(Access.READ).post(path, data=form)

    assert answer.status_code == 403
    assert statuses(session) == {1: "failed"}
    assert "'ada' may read only" in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        "/previews/emails?verb=retry&key=1",
        "/previews/emails?verb=retry_failed",
        "/schedules/run?name=morning",
    ],
)
def test_a_reader_gets_no_preview(open_page: Open, session: Session, path: str) -> None:
    add(session, failed(1))

    answer = open_page(Access.READ).get(path)

    assert (answer.status_code, texts(answer, "h1")) == (403, ["You may read only"])


@pytest.mark.parametrize("path", PAGES)
def test_a_reader_sees_no_button_that_changes_something(
    open_page: Open, session: Session, path: str
) -> None:
    add(session, failed(1))

    answer = open_page(Access.READ).get(path)

    assert answer.status_code == 200
    assert 'method="post"' not in answer.text
    assert 'type="checkbox"' not in answer.text
    assert "read only" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/static/refresh.js", "/nowhere", "/queues/other"])
def test_every_answer_forbids_the_browser_what_the_page_does_not_need(
    page: TestClient, path: str
) -> None:
    headers = page.get(path).headers

    assert headers["content-security-policy"] == (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_answers_that_refuse_have_the_same_headers(engine: Any, page: TestClient) -> None:
    stranger = TestClient(app(engine, QUEUES, authorize=refuse))

    answers = [
        stranger.get("/"),
        page.post("/queues/emails", headers={"Sec-Fetch-Site": "cross-site"}),
        page.delete("/queues/emails"),
        page.get("/queues/emails?key=7"),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 405, 303]
    assert all("content-security-policy" in answer.headers for answer in answers)


@pytest.mark.parametrize("path", PAGES)
def test_no_page_has_a_script_or_a_style_of_its_own(
    page: TestClient, session: Session, path: str
) -> None:
    add(session, failed(1, last_error="no luck"))

    text = page.get(path).text

    assert text.count("<script") == text.count('<script src="/static/refresh.js" defer>') == 1
    assert "<style" not in text
    assert " style=" not in text
    assert " on" not in {attribute[:3] for attribute in text.split('"')}


@pytest.mark.parametrize("error", [RuntimeError, ArgumentError])
def test_an_error_of_authorize_is_a_plain_page_and_its_traceback_is_in_the_log(
    engine: Any, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    def broken(_: Request) -> Visitor:
        raise error("secret words")

    answer = TestClient(app(engine, QUEUES, authorize=broken)).get("/")

    assert answer.status_code == 500
    assert "secret words" not in answer.text
    assert "secret words" in caplog.text


def test_a_form_that_is_too_large_changes_nothing(page: TestClient, session: Session) -> None:
    add(session, failed(1))
    form = {"verb": "retry", "confirm": "yes", "key": "1"}
    many, long = ["x"] * 1_200, "x" * 20_000

    answers = [page.post("/queues/emails", data={**form, "show": show}) for show in (many, long)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert statuses(session) == {1: "failed"}


def test_the_page_needs_an_engine_that_is_not_asynchronous() -> None:
    pytest.importorskip("aiosqlite")
    from sqlalchemy.ext.asyncio import create_async_engine

    made: Any = app

    with pytest.raises(ArgumentError, match="create_engine"):
        made(create_async_engine("sqlite+aiosqlite://"), QUEUES, authorize=refuse)
