"""Pages of other sites, opened by somebody who may change everything: they change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from tests.web.conftest import add, failed, statuses

from .conftest import Open
from .people import press, title
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
