"""Two people at one job at once: the second one is told what has happened."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from tests.web.conftest import add, failed, statuses
from tests.web.models import Email

from .conftest import Open
from .people import go, press, row, tick, title

pytestmark = pytest.mark.only_on("postgresql")


def preview(page: Page, path: str, button: str, *keys: int) -> None:
    """Tick jobs, and open the preview of an action."""
    go(page, path)
    tick(page, *keys)
    press(page, button)
    expect(title(page)).to_contain_text("?")


def test_the_second_to_retry_a_job_is_told_its_status(visit: Open, session: Session) -> None:
    add(session, failed(1), failed(2))
    ann, bob = visit(visitor="ann"), visit(visitor="bob")
    preview(ann, "/queues/emails", "Retry…", 1)
    preview(bob, "/queues/emails", "Retry…", 1, 2)

    press(ann, "Retry 1 job")
    expect(title(ann)).to_have_text("1 job retried")
    press(bob, "Retry 2 jobs")

    expect(title(bob)).to_have_text("1 job retried")
    expect(bob.get_by_role("status").filter(visible=True)).to_have_text(
        "1 job left alone: somebody else, or a worker, was first."
    )
    expect(row(bob, 1)).to_contain_text("left alone: its status is unclaimed now")
    expect(row(bob, 2)).to_contain_text("retried")
    assert statuses(session) == {1: "unclaimed", 2: "unclaimed"}


def test_who_cancels_what_a_worker_has_claimed_is_told(visit: Open, session: Session) -> None:
    add(session, Email(id=1))
    ann = visit()
    preview(ann, "/queues/emails?show=due", "Cancel…", 1)

    claim(session, Email, owner="worker")
    session.commit()
    press(ann, "Cancel 1 job")

    expect(title(ann)).to_have_text("0 jobs cancelled")
    expect(row(ann, 1)).to_contain_text("left alone: its status is claimed by worker now")
    assert statuses(session) == {1: "claimed"}


def test_who_acts_on_a_job_that_is_gone_is_told(visit: Open, session: Session) -> None:
    add(session, failed(1))
    ann = visit()
    preview(ann, "/queues/emails", "Retry…", 1)

    session.query(Email).delete()
    session.commit()
    press(ann, "Retry 1 job")

    expect(row(ann, 1)).to_contain_text("left alone: it is not in this queue any more")


def test_the_page_says_who_looks_at_it(visit: Open) -> None:
    ann, bob = visit(visitor="ann"), visit(visitor="bob")

    expect(ann.get_by_role("banner")).to_contain_text("ann")
    expect(bob.get_by_role("banner")).to_contain_text("bob")


def test_a_pause_by_somebody_else_is_seen_without_a_reload(visit: Open) -> None:
    ann, bob = visit("/queues/emails", "ann"), visit("/queues/emails", "bob")

    press(ann, "Pause")

    expect(title(bob)).to_have_text("emails paused")
    expect(bob.get_by_role("button", name="Resume")).to_be_visible()
