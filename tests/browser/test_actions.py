"""What people do on the pages, as they find it: by roles and by labels."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from tests.web.conftest import add, failed, statuses
from tests.web.models import SCHEDULES, Email, emails

from .people import follow, go, press, row, tick, title

pytestmark = pytest.mark.only_on("postgresql")


def test_ticked_jobs_are_retried_after_a_preview(page: Page, session: Session) -> None:
    add(session, failed(1, last_error="no mailbox"), failed(2), failed(3))
    follow(page, "emails")
    expect(row(page, 1)).to_contain_text("no mailbox")

    tick(page, 1, 3)
    press(page, "Retry…")
    expect(title(page)).to_have_text("Retry 2 jobs?")
    expect(page.get_by_text("Nothing has been changed yet.")).to_be_visible()
    before = statuses(session)
    press(page, "Retry 2 jobs")

    expect(title(page)).to_have_text("2 jobs retried")
    assert set(before.values()) == {"failed"}
    assert statuses(session) == {1: "unclaimed", 2: "failed", 3: "unclaimed"}
    follow(page, "Back to emails")
    expect(page.get_by_role("rowheader")).to_have_text(["2"])


def test_who_goes_back_from_a_preview_has_changed_nothing(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    follow(page, "emails")
    follow(page, "Due")
    tick(page, 1)
    press(page, "Cancel…")

    follow(page, "Back, and change nothing")

    expect(page.get_by_role("link", name="Due", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    assert statuses(session) == {1: "unclaimed"}


def test_back_from_a_result_shows_the_preview_again_with_the_status_of_now(
    page: Page, session: Session
) -> None:
    add(session, failed(1), failed(2))
    follow(page, "emails")
    tick(page, 1, 2)
    press(page, "Retry…")
    press(page, "Retry 2 jobs")
    expect(title(page)).to_have_text("2 jobs retried")

    page.go_back()
    expect(title(page)).to_have_text("Retry 0 jobs?")
    expect(row(page, 1)).to_contain_text("unclaimed")
    page.go_back()

    expect(page.get_by_role("link", name="Failed", exact=True)).to_have_attribute(
        "aria-current", "page"
    )


@pytest.mark.parametrize(
    ("path", "button", "shown"),
    [
        ("/queues/emails", "Retry…", "Retry 1 job?"),
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
    for box in page.get_by_role("checkbox").all():
        box.check()
    press(page, button)
    follow(page, "Workers")
    expect(title(page)).to_have_text("Workers")

    page.go_back()

    expect(title(page)).to_have_text(shown)


def test_enter_in_the_field_of_the_priority_reprioritizes(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    follow(page, "emails")
    follow(page, "Due")
    tick(page, 1)

    page.get_by_label("Priority").fill("4")
    page.get_by_label("Priority").press("Enter")

    expect(title(page)).to_have_text("Reprioritize 1 job to 4?")
