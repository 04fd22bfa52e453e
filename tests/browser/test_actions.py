"""What people do on the pages that only a browser shows: its history, and its keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import insert
from sqlalchemy.orm import Session

from tests.web.conftest import LONG_AGO, add, failed, statuses
from tests.web.models import SCHEDULES, Email, emails

from .conftest import Open
from .people import follow, go, press, row, tick, title

#: Milliseconds in which 10,000 jobs are changed.
LONG = 60_000


def test_back_from_a_result_shows_the_preview_again_with_the_status_of_now(
    page: Page, session: Session
) -> None:
    add(session, failed(1, last_error="no mailbox"), failed(2))
    follow(page, "emails")
    expect(row(page, 1)).to_contain_text("no mailbox")
    tick(page, 1, 2)
    press(page, "Retry…")
    press(page, "Retry 2 jobs")
    expect(title(page)).to_have_text("2 jobs retried")

    page.go_back()
    expect(title(page)).to_have_text("Retry 0 jobs?")
    expect(row(page, 1)).to_contain_text("unclaimed")
    follow(page, "Back, and change nothing")

    expect(page.locator("#tab-failed")).to_have_attribute("aria-current", "page")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("path", "button", "shown"),
    [
        ("/queues/emails", "Retry all…", "Retry all 1 jobs?"),
        ("/schedules", "Run morning now", "Run morning now?"),
    ],
)
def test_back_from_another_page_shows_the_preview_again(
    page: Page, session: Session, path: str, button: str, shown: str
) -> None:
    SCHEDULES.add(session, "morning", emails, "0 7 * * *")
    add(session, failed(1))
    go(page, path)
    press(page, button)
    follow(page, "Workers")
    expect(title(page)).to_have_text("Workers")

    page.go_back()

    expect(title(page)).to_have_text(shown)


@pytest.mark.only_on("postgresql")
def test_more_jobs_than_one_request_changes_go_on_by_themselves_until_somebody_stops(
    visit: Open, session: Session
) -> None:
    rows = [{"status": "failed", "owner_date": LONG_AGO} for _ in range(10_001)]
    session.execute(insert(Email), rows)
    session.commit()
    page = visit("/queues/emails", clock=True)
    page.set_default_timeout(LONG)
    page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=1))
    press(page, "Retry all…")
    press(page, "Retry all 10,000+ jobs")
    expect(title(page)).to_have_text("10,000 jobs retried", timeout=LONG)
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("link", name="Stop")).to_be_visible()

    page.clock.run_for(1_000)

    expect(title(page)).to_have_text("10,001 jobs retried", timeout=LONG)

    expect(page.get_by_role("progressbar")).to_have_count(0)
    assert set(statuses(session).values()) == {"unclaimed"}


@pytest.mark.only_on("postgresql")
def test_one_box_ticks_all_jobs_of_the_page_and_the_bar_counts_them(
    page: Page, session: Session
) -> None:
    add(session, failed(1), failed(2), failed(3))
    go(page, "/queues/emails")
    bar = page.get_by_role("group", name="With the ticked jobs")

    page.get_by_label("Tick all jobs of this page").check()
    expect(bar).to_contain_text("With the 3 ticked jobs")
    page.get_by_label("Tick job 2", exact=True).uncheck()
    expect(bar).to_contain_text("With the 2 ticked jobs")
    above = page.evaluate(
        "() => document.querySelector('.actions').getBoundingClientRect().bottom"
        " <= document.querySelector('#jobs').getBoundingClientRect().top"
    )
    press(page, "Retry…")

    assert above
    expect(title(page)).to_have_text("Retry 2 jobs?")


@pytest.mark.only_on("postgresql")
def test_enter_in_the_field_of_the_priority_reprioritizes(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    go(page, "/queues/emails?show=due")
    tick(page, 1)

    page.get_by_label("Priority").fill("4")
    page.get_by_label("Priority").press("Enter")

    expect(title(page)).to_have_text("Reprioritize 1 job to 4?")
