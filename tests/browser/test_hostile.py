"""Pages of other sites change nothing, and values that would like to be markup are text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.control import register_worker
from tests.web.conftest import add, failed, statuses
from tests.web.models import SCHEDULES, TABLES, Email, Visit, emails, visits

from .conftest import Open
from .people import go, overhang, press, title
from .watching import Watch

pytestmark = pytest.mark.only_on("postgresql")

#: The port of a page of another site, which has this markup. Its name is localhost, not 127.0.0.1.
Site = Callable[[str], int]


@pytest.fixture
def other_site() -> Iterator[Site]:
    """Serve a page from another port."""
    servers: list[ThreadingHTTPServer] = []

    def serve(markup: str) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(f"<!doctype html><link rel=icon href=data:,>{markup}".encode())

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name there
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def ann(visit: Open, watch: Watch, session: Session) -> Page:
    """Somebody who may change everything; a job has failed."""
    # A page of a refusal names no icon, so that the browser asks for /favicon.ico.
    watch.expect("request to another host: (http://(localhost|127.0.0.1):|data:,)", "403", "404")
    add(session, failed(1))
    return visit()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("policy", ["", "<meta name=referrer content=no-referrer>"])
def test_a_form_of_another_site_is_refused(
    ann: Page, session: Session, address: str, other_site: Site, policy: str, host: str
) -> None:
    fields = {"verb": "retry", "key": "1", "confirm": "yes"}
    hidden = "".join(f"<input type=hidden name={n} value={v}>" for n, v in fields.items())
    action = f"{address}/queues/emails"
    form = f"<form method=post action='{action}'>{hidden}<button>Win a prize</button></form>"
    ann.goto(f"http://{host}:{other_site(policy + form)}/")

    press(ann, "Win a prize")

    expect(title(ann)).to_have_text("Refused")
    assert ann.url == action
    assert statuses(session) == {1: "failed"}


def test_a_script_of_another_site_changes_nothing_and_reads_nothing(
    ann: Page, session: Session, address: str, other_site: Site, watch: Watch
) -> None:
    watch.expect("CORS policy", "net::ERR_FAILED")
    ann.goto(f"http://localhost:{other_site('<h1>A prize</h1>')}/")

    with ann.expect_response(f"{address}/queues/emails") as answered:
        ann.evaluate(
            """address => fetch(address, {
              method: "POST", mode: "no-cors", credentials: "include",
              body: new URLSearchParams({verb: "retry", key: "1", confirm: "yes"}),
            })""",
            f"{address}/queues/emails",
        )
    read = ann.evaluate(
        "address => fetch(address).then(each => each.text(), () => 'refused')", f"{address}/"
    )

    assert (answered.value.status, read) == (403, "refused")
    assert statuses(session) == {1: "failed"}


def test_the_page_is_in_no_frame_of_another_site(
    ann: Page, address: str, other_site: Site, watch: Watch
) -> None:
    watch.expect("frame-ancestors", "net::ERR_BLOCKED_BY_RESPONSE")
    port = other_site(f"<iframe src='{address}/queues/emails'></iframe>")

    ann.goto(f"http://localhost:{port}/")

    expect(ann.frame_locator("iframe").get_by_role("table")).to_have_count(0)
    expect(ann.frame_locator("iframe").get_by_text("emails")).to_have_count(0)


MARKUP = (
    "</pre></td></title></textarea><script>alert('runs')</script>"
    "<img src=x onerror=\"alert('runs')\"><svg onload=alert(1)>"
    "<style>body { display: none }</style><base href='http://elsewhere.example/'>"
    '"\' onmouseover="alert(\'runs\')" style="position:fixed" `${alert(1)}` {{ 7 * 7 }} &lt;b&gt;'
    "<iframe src='javascript:alert(1)'></iframe><form action='http://elsewhere.example/'>"
)

#: With a word that fits no screen.
HOSTILE = MARKUP + "x" * 10_000

#: Owners and keys are not that long.
SHORT = "<script>alert(1)</script>\"'<img src=x onerror=alert(1)>"

PATHS = [
    *("/", "/queues/emails", "/queues/emails?show=claimed", "/queues/emails?show=due"),
    *("/queues/visits?show=due", "/queues/emails/jobs/901", "/workers", "/schedules"),
]

FOREIGN = "img, iframe, base, style, script:not([src$='/static/refresh.js']), [onerror], [onload]"


@pytest.mark.only_on("postgresql")
def test_markup_in_a_value_is_text_also_after_a_refresh(page: Page, session: Session) -> None:
    add(session, failed(901, last_error=HOSTILE, recipient=SHORT[:50], body=HOSTILE))
    add(session, Email(id=902), Visit(region=SHORT[:50], number=1))
    claim(session, Email, owner=SHORT)
    add(session, Email(id=903, last_error=HOSTILE))
    register_worker(session, SHORT, [emails, visits], tables=TABLES)
    SCHEDULES.add(session, SHORT, emails, "0 7 * * *", values={"body": HOSTILE})
    session.get_one(SCHEDULES.entity, SHORT).last_error = HOSTILE
    session.commit()

    for path in PATHS:
        go(page, path)
        for place in page.locator("td, dd, pre, th").all()[:12]:
            place.dispatch_event("mouseover")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(FOREIGN)).to_have_count(0)
        assert overhang(page) == {1280: 0, 768: 0, 360: 0}, path

    go(page, "/queues/emails")
    add(session, failed(909, last_error=MARKUP))
    expect(page.get_by_role("rowheader", name="909", exact=True)).to_be_visible()
    expect(page.locator(FOREIGN)).to_have_count(0)
