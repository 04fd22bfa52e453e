"""Every page of the site over queues in which something is everywhere, and the way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim
from sa_jobqueue.control import pause, register_worker
from sa_jobqueue.events import HistoryTable
from tests.web.models import (
    HISTORY,
    SCHEDULES,
    TABLES,
    Clip,
    Email,
    Plain,
    Scan,
    Visit,
    emails,
    visits,
)

from .people import go

ERROR = """SMTPRecipientsRefused: {address}: 550 5.1.1 no such mailbox
Traceback (most recent call last):
  File "/srv/shop/mail.py", line 31, in send
    server.send_message(message, to_addrs=[job.recipient])"""

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

NAMES = ("ann", "bo", "cy", "dana", "eve")

#: The number of failed jobs: more than a page lists.
FAILED = 53


@contextmanager
def filled(engine: Engine) -> Iterator[None]:
    """Fill the tables; a worker is alive until the end."""
    recorder = HistoryTable(HISTORY).listen(Email)
    try:
        with Session(engine) as session, Owner(engine, "mailer") as owner:
            _fill(session, owner)
            yield
    finally:
        recorder.remove(Email)


def _fill(session: Session, owner: Owner) -> None:
    now = datetime.now(UTC)
    session.add_all(
        Email(
            id=key,
            status="failed",
            attempts=5,
            owner_date=now - timedelta(minutes=FAILED + 1 - key),
            recipient=f"{NAMES[key % len(NAMES)]}@example.com",
            last_error=ERROR.format(address=f"{NAMES[key % len(NAMES)]}@example.com"),
            traceparent=TRACE,
            body="Your lamp is on its way.",
        )
        for key in range(1, FAILED + 1)
    )
    session.add_all(
        Email(id=key, priority=-3, recipient=f"claimed-{key}") for key in range(101, 104)
    )
    session.commit()
    claim(session, Email, owner=owner, limit=3)
    session.add_all(Email(id=key, recipient=f"due-{key}") for key in range(111, 114))
    session.add_all(
        Email(id=key, run_at=now + timedelta(hours=key - 120), last_error="no answer")
        for key in (121, 122)
    )
    session.add(Email(id=131, status="cancelled", owner_date=now))
    session.add_all(Email(id=key, status="done", owner_date=now) for key in range(141, 145))
    statuses = {"submitted": 4, "checking": 1, "checked": 2, "at farm": 3, "rendered": 1}
    session.add_all(Clip(status=status) for status, n in statuses.items() for _ in range(n))
    session.add_all([Visit(region="Île-de-France, nord", number=7), Scan(), Plain(id=1)])
    register_worker(session, owner.name, [emails, visits], jobs=3, tables=TABLES)
    register_worker(session, "night-shift", [visits], tables=TABLES)
    pause(session, visits, tables=TABLES)
    SCHEDULES.add(session, "morning", emails, "0 7 * * mon-fri", values={"recipient": "bo"})
    SCHEDULES.add(session, "weekly", visits, "30 4 * * sun", timezone="Europe/Berlin")
    weekly = session.get_one(SCHEDULES.entity, "weekly")
    weekly.skipped_from, weekly.skipped_to = now - timedelta(days=9), now - timedelta(days=2)
    weekly.last_error = "no such column: page_visit.region"
    session.commit()
    SCHEDULES.pause(session, "weekly")
    session.commit()


def _at(path: str) -> Callable[[Page], None]:
    return lambda page: go(page, path)


def _press(page: Page, name: str) -> None:
    with page.expect_navigation():
        page.get_by_role("button", name=name).click()


def _preview(page: Page) -> None:
    go(page, "/queues/emails")
    for key in (51, 52, 53):
        page.get_by_label(f"Tick job {key}", exact=True).check()
    _press(page, "Retry…")


def _result(page: Page) -> None:
    """Retry jobs, one of which is not there any more."""
    _preview(page)
    page.locator("input[value='52']").evaluate("field => { field.value = '111' }")
    _press(page, "Retry 3 jobs")


def _preview_of_all(page: Page) -> None:
    go(page, "/queues/emails")
    _press(page, "Retry all…")


def _preview_of_schedule(page: Page) -> None:
    go(page, "/schedules")
    _press(page, "Run morning now")


def _opened_doctor(page: Page) -> None:
    go(page, "/doctor")
    for facts in page.locator("summary").all():
        facts.click()


#: The pages by their names.
PLACES: dict[str, Callable[[Page], None]] = {
    "overview": _at("/"),
    "failed": _at("/queues/emails?show=failed"),
    "claimed": _at("/queues/emails?show=claimed"),
    "due": _at("/queues/emails?show=due"),
    "empty": _at("/queues/visits?show=failed"),
    "not indexed": _at("/queues/scans?show=failed"),
    "failed job": _at("/queues/emails/jobs/1"),
    "claimed job": _at("/queues/emails/jobs/101"),
    "workers": _at("/workers"),
    "schedules": _at("/schedules"),
    "doctor": _opened_doctor,
    "preview": _preview,
    "result": _result,
    "preview of all": _preview_of_all,
    "preview of a schedule": _preview_of_schedule,
    "several databases": _at("/both/"),
    "workflow": _at("/both/eu/queues/send?show=due"),
    "long name": _at("/both/eu/doctor"),
    "problem": _at("/queues/nothing"),
}
