"""What people do on the pages that only a browser shows: its history, and its keys."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from tests.web.conftest import add, failed
from tests.web.models import SCHEDULES, Email, emails

from .people import follow, go, press, row, tick, title


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

    expect(page.get_by_role("link", name="Failed", exact=True)).to_have_attribute(
        "aria-current", "page"
    )


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("path", "button", "shown"),
    [
        ("/queues/emails", "Retry all failed…", "Retry all 1 failed jobs?"),
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
def test_enter_in_the_field_of_the_priority_reprioritizes(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    go(page, "/queues/emails?show=due")
    tick(page, 1)

    page.get_by_label("Priority").fill("4")
    page.get_by_label("Priority").press("Enter")

    expect(title(page)).to_have_text("Reprioritize 1 job to 4?")
