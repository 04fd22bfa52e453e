"""Every page and every action works without JavaScript, and so all of them work in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from tests.web.conftest import add, failed, statuses
from tests.web.models import SCHEDULES, Email, emails

from .conftest import Open
from .people import follow, go, press, tick, title

pytestmark = pytest.mark.only_on("postgresql")


def test_every_page_and_every_action_works(visit: Open, session: Session) -> None:
    SCHEDULES.add(session, "morning", emails, "0 7 * * *")
    add(session, Email(id=901))
    claim(session, Email, owner="mailer")
    add(session, *(failed(1_000 + key) for key in range(60)))
    add(session, *(Email(id=key, recipient=f"due-{key}") for key in (911, 912)))
    page = visit(java_script_enabled=False)

    follow(page, "emails")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("rowheader")).to_have_count(10)
    for listed, key, verb in [
        ("Failed", 1_059, "Retry"),
        ("Due", 911, "Cancel"),
        ("Due", 912, "Reprioritize"),
        ("Claimed", 901, "Release"),
    ]:
        go(page, "/queues/emails")
        page.locator(f"#tab-{listed.lower()}").click()
        tick(page, key)
        press(page, f"{verb}…")
        press(page, f"{verb} 1 job")
        expect(title(page)).to_contain_text("1 job ")
    go(page, "/queues/emails")
    press(page, "Retry all…")
    press(page, "Retry all 59 jobs")
    expect(title(page)).to_have_text("59 jobs retried")
    go(page, "/queues/emails")
    press(page, "Pause")
    press(page, "Resume")
    page.get_by_label("Key of a job").fill("911")
    press(page, "Find")
    expect(title(page)).to_have_text("Job 911 due-911 cancelled")
    follow(page, "Schedules")
    press(page, "Pause morning")
    press(page, "Resume morning")
    expect(page.get_by_role("button", name="Pause morning")).to_be_visible()
    follow(page, "Workers")
    expect(title(page)).to_have_text("Workers")
    follow(page, "Doctor")
    press(page, "Look again")
    expect(page.get_by_role("region", name="emails")).to_contain_text("facts")

    found = statuses(session)
    assert (found.pop(911), set(found.values())) == ("cancelled", {"unclaimed"})
