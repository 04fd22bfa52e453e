"""Values that would like to be markup are shown as text: nothing runs, and nothing is wide."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.control import register_worker
from tests.web.conftest import add, failed
from tests.web.models import SCHEDULES, TABLES, Email, Visit, emails, visits

from .people import go, overhang

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
