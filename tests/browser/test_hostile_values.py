"""Values that would like to be markup are shown as text: nothing runs, and nothing is wide."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.control import register_worker
from tests.web.conftest import add, failed
from tests.web.models import SCHEDULES, TABLES, Email, Visit, emails, visits

from .conftest import Open
from .people import go

pytestmark = pytest.mark.only_on("postgresql")

MARKUP = (
    "</pre></td></title></textarea><script>alert('runs')</script>"
    "<img src=x onerror=\"alert('runs')\"><svg onload=alert(1)>"
    "<style>body { display: none }</style><base href='http://elsewhere.example/'>"
    '"\' onmouseover="alert(\'runs\')" style="position:fixed" `${alert(1)}` {{ 7 * 7 }} &lt;b&gt;'
    "<iframe src='javascript:alert(1)'></iframe><form action='http://elsewhere.example/'>"
)

#: A word that fits no screen.
WORD = "x" * 10_000

#: Owners and keys are not that long.
SHORT = "<script>alert(1)</script>\"'<img src=x onerror=alert(1)>"

WIDTHS = (1280, 360)


@pytest.fixture
def page(visit: Open, session: Session) -> Page:
    """The page over jobs, workers and schedules that are full of markup."""
    hostile = MARKUP + WORD
    add(session, failed(901, last_error=hostile, recipient=SHORT[:50], body=hostile))
    add(session, Email(id=902, body=WORD + MARKUP, last_error=hostile))
    add(session, Visit(region=SHORT[:50], number=1))
    claim(session, Email, owner=SHORT)
    add(session, Email(id=903, last_error=hostile))
    register_worker(session, SHORT, [emails, visits], tables=TABLES)
    SCHEDULES.add(session, SHORT, emails, "0 7 * * *", values={"body": hostile})
    session.get_one(SCHEDULES.entity, SHORT).last_error = hostile
    session.commit()
    return visit()


PATHS = [
    *("/", "/queues/emails", "/queues/emails?show=claimed", "/queues/emails?show=due"),
    *("/queues/visits?show=due", "/queues/emails/jobs/901", "/queues/emails/jobs/902"),
    *("/workers", "/schedules"),
]


def be_touched(page: Page) -> None:
    """Move the mouse over everything, since markup may wait for that."""
    for place in page.locator("td, dd, pre, th").all()[:12]:
        place.dispatch_event("mouseover")


def is_wide(page: Page) -> dict[int, int]:
    """Return by how much the page scrolls sideways, where it does."""
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        found[width] = page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
    return {width: wide for width, wide in found.items() if wide}


def is_made_of_our_own(page: Page) -> bool:
    """Tell whether no value has become an element."""
    foreign = (
        "img, iframe, base, style, script:not([src$='/static/refresh.js']), [onerror], [onload]"
    )
    return page.locator(foreign).count() == 0


def test_markup_in_a_value_is_text(page: Page) -> None:
    for path in PATHS:
        go(page, path)
        be_touched(page)

        assert is_made_of_our_own(page), path
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert is_wide(page) == {}, path


def test_a_refresh_shows_markup_as_text(page: Page, session: Session) -> None:
    go(page, "/queues/emails")

    add(session, failed(909, last_error=MARKUP))

    expect(page.get_by_role("rowheader", name="909", exact=True)).to_be_visible()
    assert is_made_of_our_own(page)
