"""What people do on the pages, as they find it: by roles and by labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from sa_jobqueue.control import paused
from tests.web.conftest import add, failed, statuses
from tests.web.models import SCHEDULES, TABLES, Email, emails

from .people import follow, go, press, row, tick, title

pytestmark = pytest.mark.only_on("postgresql")


# Ticked jobs


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


@pytest.mark.parametrize("listed", ["Due", "Later"])
def test_ticked_jobs_are_cancelled(page: Page, session: Session, listed: str) -> None:
    later = timedelta(hours=3 if listed == "Later" else 0)
    add(session, *(Email(id=key, run_at=datetime.now(UTC) + later) for key in (1, 2)))
    follow(page, "emails")
    follow(page, listed)

    tick(page, 2)
    press(page, "Cancel…")
    press(page, "Cancel 1 job")

    expect(title(page)).to_have_text("1 job cancelled")
    assert statuses(session) == {1: "unclaimed", 2: "cancelled"}


def test_ticked_jobs_get_a_priority(page: Page, session: Session) -> None:
    add(session, Email(id=1), Email(id=2))
    follow(page, "emails")
    follow(page, "Due")

    tick(page, 2)
    page.get_by_label("Priority").fill("-7")
    press(page, "Reprioritize…")
    expect(title(page)).to_have_text("Reprioritize 1 job to -7?")
    press(page, "Reprioritize 1 job")
    follow(page, "Back to emails")

    expect(page.get_by_role("rowheader")).to_have_text(["2", "1"])
    session.rollback()
    assert session.get_one(Email, 2).priority == -7


def test_ticked_jobs_are_released(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    claim(session, Email, owner="mailer")
    session.commit()
    follow(page, "emails")
    follow(page, "Claimed")
    expect(row(page, 1)).to_contain_text("mailer")

    tick(page, 1)
    press(page, "Release…")
    press(page, "Release 1 job")

    expect(title(page)).to_have_text("1 job released")
    assert statuses(session) == {1: "unclaimed"}


def test_a_press_without_a_ticked_job_is_told_so(page: Page, session: Session, watch: Any) -> None:
    watch.expect("400")
    add(session, failed(1))
    follow(page, "emails")

    press(page, "Retry…")

    expect(title(page)).to_have_text("No job is ticked")
    assert statuses(session) == {1: "failed"}


def test_enter_in_the_field_of_the_priority_reprioritizes(page: Page, session: Session) -> None:
    add(session, Email(id=1))
    follow(page, "emails")
    follow(page, "Due")
    tick(page, 1)

    page.get_by_label("Priority").fill("4")
    page.get_by_label("Priority").press("Enter")

    expect(title(page)).to_have_text("Reprioritize 1 job to 4?")


# All failed jobs


def test_all_failed_jobs_are_retried_after_a_preview(page: Page, session: Session) -> None:
    add(session, *(failed(key) for key in range(1, 61)))
    follow(page, "emails")

    press(page, "Retry all failed…")
    expect(title(page)).to_have_text("Retry all 60 failed jobs?")
    expect(page.get_by_role("rowheader")).to_have_count(10)
    press(page, "Retry all failed jobs")

    expect(title(page)).to_have_text("60 jobs retried")
    assert set(statuses(session).values()) == {"unclaimed"}


def test_a_job_that_fails_while_somebody_reads_the_preview_is_not_retried(
    page: Page, session: Session
) -> None:
    add(session, failed(1), failed(2))
    follow(page, "emails")
    press(page, "Retry all failed…")
    expect(title(page)).to_have_text("Retry all 2 failed jobs?")

    add(session, failed(3))
    session.get_one(Email, 1).status = "cancelled"
    session.commit()
    press(page, "Retry all failed jobs")

    expect(title(page)).to_have_text("1 job retried")
    expect(page.get_by_text("1 job of the preview left alone")).to_be_visible()
    expect(page.get_by_text("Jobs that failed after 2020-01-01 00:02:00 UTC")).to_be_visible()
    assert statuses(session) == {1: "cancelled", 2: "unclaimed", 3: "failed"}


# A job


@pytest.mark.parametrize(
    ("status", "verb", "after"),
    [
        ("failed", "Retry", "unclaimed"),
        ("cancelled", "Retry", "unclaimed"),
        ("done", "Retry", "unclaimed"),
        ("unclaimed", "Cancel", "cancelled"),
        ("claimed", "Release", "unclaimed"),
    ],
)
def test_a_job_is_changed_on_its_own_page(
    page: Page, session: Session, status: str, verb: str, after: str
) -> None:
    add(session, failed(1, status=status, owner="w" if status == "claimed" else None))
    go(page, "/queues/emails/jobs/1")
    expect(title(page)).to_have_text(f"Job 1 {status}")

    press(page, f"{verb}…")
    press(page, f"{verb} 1 job")
    follow(page, "1")

    expect(title(page)).to_have_text(f"Job 1 {after}")
    assert statuses(session) == {1: after}


def test_a_job_gets_a_priority_on_its_own_page(page: Page, session: Session) -> None:
    add(session, Email(id=1, priority=3))
    go(page, "/queues/emails/jobs/1")
    expect(page.get_by_label("Priority")).to_have_value("3")

    page.get_by_label("Priority").fill("9")
    press(page, "Reprioritize…")
    press(page, "Reprioritize 1 job")

    expect(title(page)).to_have_text("1 job reprioritized")
    session.rollback()
    assert session.get_one(Email, 1).priority == 9


# Finding and paging


def test_a_job_is_found_by_its_key(page: Page, session: Session) -> None:
    add(session, Email(id=17, body="Dear Ann"))
    follow(page, "emails")

    page.get_by_label("Key of a job").fill("17")
    press(page, "Find")

    expect(title(page)).to_have_text("Job 17 unclaimed")
    expect(page.get_by_role("definition").filter(has_text="Dear Ann")).to_be_visible()


@pytest.mark.parametrize("typed", ["18", "x"])
def test_a_key_without_a_job_is_told(page: Page, session: Session, watch: Any, typed: str) -> None:
    watch.expect("404")
    follow(page, "emails")

    page.get_by_label("Key of a job").fill(typed)
    page.get_by_label("Key of a job").press("Enter")

    expect(title(page)).to_have_text("No such job")


def test_long_lists_have_pages(page: Page, session: Session) -> None:
    add(session, *(failed(key) for key in range(1, 121)))
    follow(page, "emails")
    keys = page.get_by_role("rowheader")

    seen = []
    for count in (50, 50, 20):
        expect(keys).to_have_count(count)
        seen += keys.all_inner_texts()
        if count == 50:
            page.get_by_role("link", name="Next").click()
            expect(keys.first).not_to_have_text(seen[-50])

    assert seen == [str(key) for key in range(120, 0, -1)]
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    follow(page, "First page")
    expect(keys.first).to_have_text("120")


# A queue


def test_a_queue_is_paused_and_resumed(page: Page, session: Session) -> None:
    follow(page, "emails")

    press(page, "Pause")
    expect(title(page)).to_have_text("emails paused")
    assert [each.queue for each in paused(session, tables=TABLES)] == ["page_email"]
    press(page, "Resume")

    expect(title(page)).to_have_text("emails")
    session.rollback()
    assert paused(session, tables=TABLES) == []


# Schedules


@pytest.fixture
def schedule(session: Session) -> None:
    """A schedule of emails."""
    SCHEDULES.add(session, "morning", emails, "0 7 * * *", values={"recipient": "bo"})
    session.commit()


@pytest.mark.usefixtures("schedule")
def test_a_schedule_is_run_now_after_a_preview(page: Page, session: Session) -> None:
    follow(page, "Schedules")

    press(page, "Run morning now")
    expect(title(page)).to_have_text("Run morning now?")
    before = statuses(session)
    press(page, "Insert the job")

    expect(title(page)).to_have_text("Schedules")
    assert (len(before), list(statuses(session).values())) == (0, ["unclaimed"])


@pytest.mark.usefixtures("schedule")
def test_a_schedule_is_paused_and_resumed(page: Page, session: Session) -> None:
    follow(page, "Schedules")

    press(page, "Pause morning")
    expect(row(page, "morning")).to_contain_text("paused")
    session.rollback()
    assert [info.paused for info in SCHEDULES.all(session)] == [True]
    press(page, "Resume morning")

    expect(row(page, "morning")).to_contain_text("runs")
    session.rollback()
    assert [info.paused for info in SCHEDULES.all(session)] == [False]


# The doctor


def test_the_doctor_looks_again(page: Page) -> None:
    follow(page, "Doctor")
    reports = page.get_by_role("region", name="emails")
    expect(reports).to_contain_text("ago")

    press(page, "Look again")

    expect(reports).to_contain_text("ago")
    assert page.url.endswith("/doctor?again=1")


# Who may read only


def test_a_reader_has_no_buttons_that_change_anything(visit: Any, session: Session) -> None:
    add(session, failed(1))

    page = visit(visitor="cy")

    for path in ("/queues/emails", "/queues/emails/jobs/1", "/schedules"):
        go(page, path)
        expect(page.get_by_text("read only")).to_be_visible()
        assert page.get_by_role("button").all_inner_texts() in ([], ["Find"])
        assert page.get_by_role("checkbox").count() == 0
