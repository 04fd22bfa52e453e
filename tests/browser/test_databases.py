"""The page on every database: the first page, a queue, a job, and an action."""

from __future__ import annotations

from playwright.sync_api import expect
from sqlalchemy.orm import Session

from tests.web.conftest import add, failed, statuses
from tests.web.models import Email

from .conftest import Open
from .people import follow, press, row, tick, title


def test_a_failed_job_is_seen_looked_into_and_retried(visit: Open, session: Session) -> None:
    add(session, failed(1, last_error="no mailbox\nfor ann"), Email(id=2), failed(3))
    page = visit()
    expect(page.get_by_role("row").nth(1).get_by_role("cell").first).to_have_text("1")

    follow(page, "emails")
    expect(row(page, 1)).to_contain_text("no mailbox")
    follow(page, "1")
    expect(title(page)).to_have_text("Job 1 failed")
    expect(page.get_by_text("for ann")).to_be_visible()
    follow(page, "emails")
    tick(page, 1)
    press(page, "Retry…")
    press(page, "Retry 1 job")

    expect(title(page)).to_have_text("1 job retried")
    assert statuses(session) == {1: "unclaimed", 2: "unclaimed", 3: "failed"}
