"""Who may see the page and where it is, what it refuses, and what it forbids the browser."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.web import Access, Visitor, app
from tests.models import Account

from .conftest import OURS, Open, add, failed, refuse, statuses, texts
from .models import QUEUES, Email

PAGES = ["/", "/queues/emails", "/queues/emails/jobs/1", "/workers", "/schedules", "/doctor"]


pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def test_nobody_sees_anything_whom_authorize_does_not_know(engine: Any) -> None:
    stranger = TestClient(app(engine, QUEUES, authorize=refuse))

    for path in (*PAGES, "/nowhere", "/static/style.css", "/queues/other"):
        answer = stranger.get(path)
        assert answer.status_code == 403
        assert not [name for name in (*QUEUES, "Workers") if name in answer.text], path


def test_authorize_may_be_async_sees_the_request_and_may_answer_by_itself(engine: Any) -> None:
    async def by_header(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        if name == "new":
            raise HTTPException(302, headers={"Location": "/login"})
        return None if name is None else Visitor(name, Access.READ)

    page = TestClient(app(engine, QUEUES, authorize=by_header), follow_redirects=False)

    assert page.get("/workers").status_code == 403
    assert "<bdi>bo</bdi> <span" in page.get("/workers", headers={"x-user": "bo"}).text
    assert page.get("/", headers={"x-user": "new"}).headers["location"] == "/login"


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


#: What changes something, or leads to it.
FORMS = [
    ("/queues/emails", {"verb": "retry", "key": "1"}),
    ("/queues/emails", {"verb": "retry", "key": "1", "confirm": "yes"}),
    ("/queues/emails", {"all": "retry", "show": "failed", "confirm": "yes"}),
    ("/queues/emails", {"verb": "pause"}),
    ("/schedules", {"verb": "pause", "name": "morning"}),
]
PREVIEWS = [
    *("/previews/emails?verb=retry&key=1", "/previews/emails?all=retry&show=failed"),
    "/schedules/run?name=morning",
]


def test_a_reader_may_change_nothing_and_sees_no_button_for_it(
    open_page: Open, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add(session, failed(1))
    page = open_page(Access.READ)

    refused = [page.post(path, data=form) for path, form in FORMS]
    refused += [page.get(path) for path in PREVIEWS]
    shown = [page.get(path) for path in PAGES]

    assert {(each.status_code, *texts(each, "h1")) for each in refused} == {
        (403, "You may read only")
    }
    assert statuses(session) == {1: "failed"}
    assert caplog.text.count("'ada' may read only") == len(refused)
    for each in shown:
        assert (each.status_code, "read only" in each.text) == (200, True)
        assert 'method="post"' not in each.text
        assert 'type="checkbox"' not in each.text


def test_every_answer_forbids_the_browser_what_the_page_does_not_need(
    engine: Any, page: TestClient
) -> None:
    stranger = TestClient(app(engine, QUEUES, authorize=refuse))
    paths = (*PAGES, "/static/refresh.js", "/nowhere", "/queues/other")
    refused = [
        stranger.get("/"),
        page.post("/queues/emails", headers={"Sec-Fetch-Site": "cross-site"}),
        page.delete("/queues/emails"),
        page.get("/queues/emails?key=7"),
    ]

    for answer in (*map(page.get, paths), *refused):
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
            "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
    assert [answer.status_code for answer in refused] == [403, 403, 405, 303]


def no_visitor(_: Request) -> Any:
    return True


def broken(_: Request) -> Visitor:
    raise ArgumentError("secret words")


@pytest.mark.parametrize(
    ("authorize", "logged"), [(no_visitor, "Visitor"), (broken, "secret words")]
)
def test_an_error_of_authorize_is_a_plain_page_and_its_traceback_is_in_the_log(
    engine: Any, caplog: pytest.LogCaptureFixture, authorize: Any, logged: str
) -> None:
    answer = TestClient(app(engine, QUEUES, authorize=authorize)).get("/")

    assert answer.status_code == 500
    assert "secret words" not in answer.text
    assert "emails" not in answer.text
    assert logged in caplog.text


def test_a_page_that_the_browser_has_is_not_sent_again(page: TestClient, session: Session) -> None:
    tag = page.get("/queues/emails").headers["etag"]
    same = page.get("/queues/emails", headers={"If-None-Match": tag})
    add(session, failed(1))
    other = page.get("/queues/emails", headers={"If-None-Match": tag})

    assert (same.status_code, same.content, same.headers["cache-control"]) == (304, b"", "no-store")
    assert (other.status_code, other.headers["etag"] == tag) == (200, False)


def test_a_form_that_is_too_large_changes_nothing(page: TestClient, session: Session) -> None:
    add(session, failed(1))
    form = {"verb": "retry", "confirm": "yes", "key": "1"}
    many, long = ["x"] * 1_200, "x" * 1_000_000

    answers = [page.post("/queues/emails", data={**form, "show": show}) for show in (many, long)]
    answers.append(page.post("/queues/emails", content=b"a=1&" * 2_500_000))
    answers.append(page.post("/queues/emails", content=b"\xff"))

    assert [answer.status_code for answer in answers] == [400, 413, 413, 400]
    assert {answer.elapsed < timedelta(seconds=1) for answer in answers} == {True}
    assert statuses(session) == {1: "failed"}


def test_what_makes_no_page_is_refused(open_page: Open) -> None:
    pytest.importorskip("aiosqlite")
    awaited: Any = create_async_engine("sqlite+aiosqlite://")
    without: Any = app
    account = JobQueue(Account, Account.id > 0, strategy="advisory")

    with pytest.raises(TypeError, match="authorize"):
        without(create_engine("sqlite://"), QUEUES)
    with pytest.raises(ArgumentError, match="create_engine"):
        open_page(on=awaited)
    with pytest.raises(ArgumentError, match="add JobMixin to its bases"):
        open_page(queues=[account])
    for name in ("", ".", "..", "a/jobs/b"):
        with pytest.raises(ArgumentError, match="makes no address"):
            open_page(queues={name: QUEUES["emails"]})


PATHS = ["/", "/queues/emails", "/queues/emails?show=due", "/queues/emails/jobs/1"]
PATHS += ["/workers", "/schedules", "/doctor", "/nowhere"]


def authorize(_: Any) -> Visitor:
    return Visitor("ada", Access.ADMIN)


@pytest.fixture(params=["mounted", "behind a proxy"])
def mounted(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """A client of the page, and the path where it is."""
    page = app(engine, QUEUES, authorize=authorize)
    options: dict[str, Any] = {"headers": OURS, "follow_redirects": False}
    if request.param == "mounted":
        outer = Starlette(routes=[Mount("/admin", routes=[Mount("/jobs", page)])])
        yield TestClient(outer, **options), "/admin/jobs"
    else:
        yield TestClient(page, root_path="/shop/jobs", **options), "/shop/jobs"


def test_every_link_stays_beneath_the_path_and_leads_to_a_page(
    mounted: Any, session: Session
) -> None:
    client, root = mounted
    add(session, failed(1), Email(id=2))
    found: set[str] = set()

    for path in PATHS:
        answer = client.get(root + path)
        assert answer.status_code == (404 if path == "/nowhere" else 200)
        there = re.findall(r'(?:href|src|action)="([^"]*)"', answer.text)
        assert not [link for link in there if not link.startswith((f"{root}/", "?", "#"))], path
        found |= {link for link in there if "/previews/" not in link and link.startswith("/")}
    asked = client.get(f"{root}/queues/emails?key=1").headers["location"]
    paused = client.post(f"{root}/queues/emails", data={"verb": "pause"}).headers["location"]

    assert {client.get(html.unescape(link)).status_code for link in found} == {200}
    assert f"{root}/queues/emails" in found
    assert asked == f"{root}/queues/emails/jobs/1"
    assert paused == f"{root}/queues/emails"
